"""Token ids and bytes against llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from luced.errors import ModelError, RequestError
from luced.text.bpe import PRE_TOKENIZERS, read_merges
from luced.text.tokenizer import Tokenizer, load_tokenizer
from luced.text.vocabulary import END_TEXTS, Kind
from tests.text.corpus import TEXTS
from tests.text.encoding import ANY_TEXT, check_encode
from tests.text.files import PREFIX, Pair, real_metadata, real_pair, small_bpe, small_pair, small_spm

REAL = ("smollm2", "gemma3")


@pytest.mark.parametrize("name", REAL)
def test_ids_of_the_corpus(name: str) -> None:
    for text in TEXTS:
        check_encode(real_pair(name), text)


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=300)
@given(text=ANY_TEXT)
def test_ids_of_any_text(name: str, text: str) -> None:
    check_encode(real_pair(name), text)


@pytest.mark.parametrize("name", REAL)
def test_bytes_and_ends_of_every_token(name: str) -> None:
    tokenizer, oracle = real_pair(name)
    assert tokenizer.n_vocab == oracle.n_vocab
    assert tokenizer.eog_ids == oracle.eog_ids()
    for token, special in product(range(tokenizer.n_vocab), (False, True)):
        assert tokenizer.token_bytes(token, special) == oracle.token_bytes(token, special), token


def test_what_the_tokenizer_says_of_itself() -> None:
    smollm2, gemma3 = (real_pair(name)[0] for name in REAL)
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.add_bos, smollm2.has_text) == (1, 2, False, True)
    assert (gemma3.bos_id, gemma3.eos_id, gemma3.add_bos, gemma3.add_space_prefix) == (2, 1, True, False)
    assert (smollm2.name(2), smollm2.kind(2)) == ("<|im_end|>", Kind.CONTROL)
    assert (gemma3.name(9259), gemma3.kind(9259)) == ("Hello", Kind.NORMAL)
    assert gemma3.kind(107) == Kind.USER_DEFINED


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_pre_tokenizers(pre: str) -> None:
    with small_pair(small_bpe(pre)) as pair:
        for text in TEXTS:
            if pre != "laguna" or "\r" not in text:
                check_encode(pair, text)


@cache
def laguna_pair() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Ours, and one with the splits of the model's own file, which llama.cpp leaves at carriage returns."""
    values = small_bpe("laguna")
    ours = load_tokenizer(values)
    ids = ours.vocabulary.ids
    theirs = tokenizers.Tokenizer(models.BPE(ids, read_merges(values, ids)))
    lines = pre_tokenizers.Split(tokenizers.Regex(r"(?:\r?\n)+(?!\r?\n)"), "merged_with_next")
    words = pre_tokenizers.Split(tokenizers.Regex(PRE_TOKENIZERS["qwen2"][0]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([lines, words, to_bytes])
    return ours, theirs


@settings(max_examples=500, deadline=None, derandomize=True)
@example(text="\r\n\r\na\n\r\r\n\n  b\r")
@given(text=st.text(st.sampled_from("\r\n\n  \tab.1'")))
def test_lines_of_laguna(text: str) -> None:
    ours, theirs = laguna_pair()
    assert ours.encode(text, False, False) == theirs.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module", params=["default", "llama-bpe", "qwen2", "qwen35", "joyai-llm"])
def split_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with small_pair(small_bpe(request.param)) as pair:
        yield pair


@settings(max_examples=200)
@given(text=ANY_TEXT)
def test_pre_tokenizers_on_any_text(split_pair: Pair, text: str) -> None:
    check_encode(split_pair, text)


def test_llama3_takes_words_that_are_tokens_whole() -> None:
    """Without the merge that makes it, " the" is a token only where merges are ignored."""
    values = small_bpe("llama-bpe")
    values[f"{PREFIX}merges"] = [m for m in values[f"{PREFIX}merges"] if m.replace(" ", "") != "Ġthe"]
    the = values[f"{PREFIX}tokens"].index("Ġthe")
    with small_pair(values) as pair:
        check_encode(pair, "in the there")
        assert the in pair[0].encode("in the there", False, False)
    assert the not in load_tokenizer(values | {f"{PREFIX}pre": "qwen2"}).encode("in the there", False, False)


@pytest.fixture(scope="module", params=[1 << 20, 40])
def spm_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with small_pair(small_spm(request.param)) as pair:
        yield pair


def test_spm_with_space_prefix(spm_pair: Pair) -> None:
    assert spm_pair[0].add_space_prefix
    for text in TEXTS:
        check_encode(spm_pair, text)


@settings(max_examples=200)
@given(text=ANY_TEXT)
def test_spm_with_space_prefix_on_any_text(spm_pair: Pair, text: str) -> None:
    check_encode(spm_pair, text)


OVERLAPPING = ("<x>", "<x><y>", "><", "\n\n", "\n\n\n", "xq", "qzj")


@pytest.fixture(scope="module")
def overlapping_pair() -> Iterator[Pair]:
    values = small_bpe("qwen2")
    values[f"{PREFIX}tokens"] = values[f"{PREFIX}tokens"] + list(OVERLAPPING)
    kinds = [1] * len(values[f"{PREFIX}token_type"])
    values[f"{PREFIX}token_type"] = [*kinds, 3, 4, 4, 4, 4, 3, 4]
    with small_pair(values) as pair:
        yield pair


@settings(max_examples=500)
@given(text=st.text(st.sampled_from("<x><y>\nxqzj ")))
def test_special_tokens_that_overlap(overlapping_pair: Pair, text: str) -> None:
    check_encode(overlapping_pair, text)


@pytest.mark.parametrize("also", [(), ("tool",), ("add_eos_token",)])
def test_ends(also: tuple[str, ...]) -> None:
    """Of texts that end an answer by their name alone; with and without eot, eom, and EOS after a prompt."""
    values = small_bpe("qwen2")
    # Where one of these is there llama.cpp drops another from the list; no model that we run has both.
    names = [
        t for t in END_TEXTS if t not in ("<|return|>", "<|flush|>", "<|tool_response>", *values[f"{PREFIX}tokens"])
    ]
    # Of the names of one kind of code model llama.cpp takes the first that it finds.
    names = [t for t in names if t not in ("<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|repo_name|>", "<|fim_repo|>",
                                           "<fim-repo>", "<REPO>")]  # fmt: skip
    values[f"{PREFIX}tokens"] = [*values[f"{PREFIX}tokens"], *names]
    values[f"{PREFIX}token_type"] = values[f"{PREFIX}token_type"] + [1] * len(names)
    if "tool" in also:
        values |= {f"{PREFIX}eot_token_id": 500, f"{PREFIX}eom_token_id": 501}
    if "add_eos_token" in also:
        values |= {f"{PREFIX}add_eos_token": True, f"{PREFIX}add_bos_token": True}
    with small_pair(values) as (tokenizer, oracle):
        assert tokenizer.eog_ids == oracle.eog_ids()
        check_encode((tokenizer, oracle), "a <|eot_id|> b </s>")


def test_control_tokens_are_text_where_told() -> None:
    smollm2 = real_pair("smollm2")[0]
    text = "<|im_end|> <|im_end|>"
    literal = bytearray(len(text))
    assert smollm2.encode(text, True, False, literal).count(2) == 2
    literal[3] = 1
    tokens = smollm2.encode(text, True, False, literal)
    assert tokens.count(2) == 1
    assert tokens[-1] == 2
    assert b"".join(smollm2.token_bytes(t, special=True) for t in tokens) == text.encode()


def test_plain_text_never_becomes_a_control_token() -> None:
    """Not even where the merges lead to it: "</s>" is such a token once it is known to end answers."""
    bpe = small_bpe("qwen2")
    bpe[f"{PREFIX}tokens"] = [*bpe[f"{PREFIX}tokens"], "</", "s>", "</s>"]
    bpe[f"{PREFIX}token_type"] = bpe[f"{PREFIX}token_type"] + [1, 1, 1]
    bpe[f"{PREFIX}merges"] = ["< /", "s >", "</ s>", *bpe[f"{PREFIX}merges"]]
    spm = small_spm()
    spm[f"{PREFIX}tokens"] = [*spm[f"{PREFIX}tokens"], "</zq", "</", "zq"]
    spm[f"{PREFIX}token_type"] = spm[f"{PREFIX}token_type"] + [3, 1, 1]
    spm[f"{PREFIX}scores"] = spm[f"{PREFIX}scores"] + [0.0, 0.0, 0.0]
    for values, text in ((bpe, "</s>"), (spm, "</zq")):
        tokenizer = load_tokenizer(values)
        token = tokenizer.vocabulary.ids[text]
        assert tokenizer.encode(text, True, False) == [token]
        assert token not in tokenizer.encode(text, False, False)


def test_text_that_is_not_unicode() -> None:
    for name in REAL:
        with pytest.raises(RequestError, match=r"U\+D83D, at character 2") as caught:
            real_pair(name)[0].encode("ab\ud83d", False, False)
        assert caught.value.name == "bad_parameter"


def no_tokenizer(model: str | None) -> Tokenizer:
    values: dict[str, Any] = {"general.architecture": "llama", "llama.vocab_size": 300}
    return load_tokenizer(values if model is None else values | {f"{PREFIX}model": model})


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_without_a_tokenizer_ids_work_and_text_does_not(model: str | None) -> None:
    tokenizer = no_tokenizer(model)
    assert (tokenizer.n_vocab, tokenizer.eog_ids, tokenizer.has_text) == (300, frozenset(), False)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.token_bytes(7), tokenizer.name(7)) == (None, None, b"", "<7>")
    with pytest.raises(RequestError) as caught:
        tokenizer.encode("a", False, False)
    assert caught.value.name == "not_supported"


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({f"{PREFIX}model": "bert"}, "unsupported_model", "'bert'"),
        ({f"{PREFIX}pre": "unheard-of"}, "unsupported_model", "'unheard-of'"),
        ({f"{PREFIX}pre": None}, "unsupported_model", "tokenizer.ggml.pre"),
        ({f"{PREFIX}pre": ["qwen2"]}, "bad_model_file", "must be str"),
        ({f"{PREFIX}tokens": None}, "bad_model_file", "tokenizer.ggml.tokens"),
        ({f"{PREFIX}tokens": [1, 2]}, "bad_model_file", "tokenizer.ggml.tokens"),
        ({f"{PREFIX}token_type": [1]}, "bad_model_file", "token_type"),
        ({f"{PREFIX}token_type": [9] * 8694}, "bad_model_file", "unknown type 9"),
        ({f"{PREFIX}merges": None}, "bad_model_file", "merges"),
        ({f"{PREFIX}merges": ["the"]}, "bad_model_file", "merges"),
        ({f"{PREFIX}eos_token_id": 8694}, "bad_model_file", "eos_token_id"),
        ({f"{PREFIX}eos_token_id": "2"}, "bad_model_file", "must be int"),
        ({f"{PREFIX}model": "llama"}, "bad_model_file", "scores"),
        ({f"{PREFIX}model": "llama", f"{PREFIX}scores": [0.0] * 8694}, "bad_model_file", "byte 0x00"),
        ({f"{PREFIX}model": "none"}, "bad_model_file", "vocab_size"),
        ({f"{PREFIX}model": "none", "None.vocab_size": 1 << 40}, "bad_model_file", "vocab_size"),
    ],
)
def test_broken_and_unknown_tokenizers_are_refused(change: dict[str, Any], code: str, named: str) -> None:
    values = {key: value for key, value in (small_bpe("qwen2") | change).items() if value is not None}
    with pytest.raises(ModelError) as caught:
        load_tokenizer(values)
    assert caught.value.name == code
    assert named in caught.value.message


def test_the_metadata_may_be_any_mapping() -> None:
    tokenizer = load_tokenizer(real_metadata("smollm2"))
    assert tokenizer.encode("Hello world", False, False) == real_pair("smollm2")[0].encode("Hello world", False, False)
