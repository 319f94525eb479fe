"""BPE over characters, Gemma 4's, against llama.cpp and HF."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings

from luced.errors import ModelError
from luced.text.tokenizer import load_tokenizer
from tests.text.corpus import TEXTS
from tests.text.encoding import ANY_TEXT, check_encode
from tests.text.files import GEMMA4_SHOWN, PREFIX, Pair, small_chars, small_pair

CHANNELS = (
    "<|turn>user\nHi<turn|>\n<|turn>model\n<|channel>thought\nHm.\n\n<channel|>Yes.<turn|>",
    '<|tool_call>call:f{a:<|"|>x </s> <|"|>,b:[1,true]}<tool_call|><|tool_response>response:f{}<tool_response|>',
    *("\n" * n for n in range(1, 70)),
    *(f"a{chr(10) * n} b{chr(10) * n}\r\n" for n in range(1, 40)),
)


@pytest.fixture(scope="module", params=["as it is", "few merges"])
def char_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    values = small_chars()
    if request.param == "few merges":  # so that whole tokens are out of their reach, newlines too
        values[f"{PREFIX}merges"] = values[f"{PREFIX}merges"][::3]
    with small_pair(values) as pair:
        yield pair


def test_bpe_over_characters(char_pair: Pair) -> None:
    for text in (*TEXTS, *CHANNELS):
        check_encode(char_pair, text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=ANY_TEXT)
def test_bpe_over_characters_on_any_text(char_pair: Pair, text: str) -> None:
    check_encode(char_pair, text)


def test_bytes_and_ends_of_every_token_of_gemma4(char_pair: Pair) -> None:
    """ "</s>" ends no answer: it is a tag of HTML here. What marks thoughts and tool calls is shown."""
    tokenizer, oracle = char_pair
    assert tokenizer.eog_ids == oracle.eog_ids()
    for token, special in product(range(tokenizer.n_vocab), (False, True)):
        assert tokenizer.token_bytes(token, special) == oracle.token_bytes(token, special), token
    ids = tokenizer.vocabulary.ids
    assert ids["</s>"] not in tokenizer.eog_ids
    shown = [name for name in GEMMA4_SHOWN if tokenizer.token_bytes(ids[name]) == name.encode()]
    assert set(GEMMA4_SHOWN) - set(shown) == {"<|tool_response>"}  # which ends an answer


def test_bpe_over_characters_as_hf_has_it() -> None:
    """Which splits at no newlines: no token of the vocabulary has one beside something else."""
    hf = pytest.importorskip("transformers.models.gemma.tokenization_gemma", reason="transformers is not installed")
    values = small_chars()
    tokenizer = load_tokenizer(values)
    merges = [tuple(merge.split(" ")) for merge in values[f"{PREFIX}merges"]]
    theirs = hf.GemmaTokenizer(vocab=dict(tokenizer.vocabulary.ids), merges=merges)
    for text in TEXTS:
        if not any(name in text for name in ("<bos>", "<eos>", "<unk>", "<pad>", "<mask>")):
            assert tokenizer.encode(text, False, False) == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("said", [None, False, True])
def test_gemma4_begins_with_bos_whatever_its_file_says(said: bool | None) -> None:
    values = small_chars() | ({} if said is None else {f"{PREFIX}add_bos_token": said})
    with small_pair(values) as pair:
        check_encode(pair, "Hello")
        assert pair[0].add_bos


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({f"{PREFIX}merges": None}, "merges"),
        ({f"{PREFIX}merges": []}, "merges"),
        ({f"{PREFIX}merges": [1]}, "merges"),
        ({f"{PREFIX}merges": ["▁t"]}, "'▁t'"),
        ({f"{PREFIX}tokens": [str(i) for i in range(300)], f"{PREFIX}token_type": [1] * 300}, "byte 0x00"),
        ({f"{PREFIX}token_type": [3] * 300}, "token_type"),
    ],
)
def test_broken_vocabularies_of_characters_are_refused(change: dict[str, Any], named: str) -> None:
    values = {key: value for key, value in (small_chars() | change).items() if value is not None}
    with pytest.raises(ModelError, match=named) as caught:
        load_tokenizer(values)
    assert caught.value.name == "bad_model_file"
