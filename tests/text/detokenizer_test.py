"""Text of tokens as they come, against decoding all bytes at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luced.errors import RequestError
from luced.text.detokenizer import Detokenizer, detokenize
from luced.text.tokenizer import load_tokenizer
from tests.text.corpus import TEXTS
from tests.text.files import real_pair, small_spm

TOKENS = st.lists(st.integers(0, 49151) | st.integers(20, 300))


@settings(max_examples=300)
@given(tokens=TOKENS, special=st.booleans())
def test_pieces_joined_are_the_text(tokens: list[int], special: bool) -> None:
    """For any tokens, most of which are no UTF-8: what is said early is right, and nothing is said late."""
    tokenizer = real_pair("smollm2")[0]
    detokenizer = Detokenizer(tokenizer, special)
    data, text = b"", ""
    for n, token in enumerate(tokens, 1):
        data += tokenizer.token_bytes(token, special)
        text += detokenizer.push(token)
        whole = data.decode(errors="replace")
        n_incomplete = next((i for i in range(4) if is_start(data[len(data) - i :])), 0)
        assert text == whole[: len(whole) - (n_incomplete > 0)]
        n_held = 0
        while len(b"".join(tokenizer.token_bytes(t, special) for t in tokens[n - n_held : n])) < n_incomplete:
            n_held += 1
        if n_incomplete == 0:
            assert detokenizer.n_released == n
        else:
            assert detokenizer.n_released <= n - n_held
    text += detokenizer.flush()
    assert detokenizer.n_released == len(tokens)
    assert text == data.decode(errors="replace") == detokenize(tokenizer, tokens, special)


def is_start(data: bytes) -> bool:
    """Whether more bytes would make one code point of these."""
    return any(
        all(low <= byte <= high for byte, (low, high) in zip(data, ranges, strict=False))
        and 0 < len(data) < len(ranges)
        for ranges in (
            ((0xC2, 0xDF), (0x80, 0xBF)),
            ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)),
            ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
            ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)),
            ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
            ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
            ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
            ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
        )
    )


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_text_comes_back(name: str) -> None:
    tokenizer = real_pair(name)[0]
    for text in TEXTS:
        if name == "smollm2" and "\x1d" in text:
            continue  # a byte that its vocabulary lacks
        tokens = tokenizer.encode(text, special=False, bos=False)
        # SPM writes U+2581 for the space, so that one cannot be told from the other.
        assert detokenize(tokenizer, tokens, special=False) == (
            text.replace("\u2581", " ") if name == "gemma3" else text
        )


def test_a_code_point_of_several_tokens_comes_with_the_last() -> None:
    tokenizer = real_pair("smollm2")[0]
    tokens = tokenizer.encode("𓀀", special=False, bos=False)
    assert len(tokens) > 1
    detokenizer = Detokenizer(tokenizer)
    pieces = [(detokenizer.push(token), detokenizer.n_released) for token in tokens]
    assert pieces == [*[("", 0)] * (len(tokens) - 1), ("𓀀", len(tokens))]


def test_control_tokens_are_seen_if_asked_for() -> None:
    tokenizer = real_pair("smollm2")[0]
    tokens = tokenizer.encode("<|im_start|>a<|im_end|>", special=True, bos=False)
    assert detokenize(tokenizer, tokens, special=True) == "<|im_start|>a<|im_end|>"
    assert detokenize(tokenizer, tokens, special=False) == "a"


def test_the_space_that_the_tokenizer_put_before_a_text_is_dropped_once() -> None:
    tokenizer = load_tokenizer(small_spm())
    for text in ("the end", " the end", "  the", ""):
        tokens = tokenizer.encode(text, special=False, bos=True)
        assert detokenize(tokenizer, tokens, special=False) == text
    goes_on = Detokenizer(tokenizer, begins=False)
    assert "".join(map(goes_on.push, tokenizer.encode("the end", special=False, bos=True))) == " the end"


def test_without_a_tokenizer_there_is_no_text() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        detokenize(load_tokenizer({"general.architecture": "llama", "llama.vocab_size": 9}), [1], special=False)
