"""An answer as it is streamed, with any tokens and stop strings, against what its bytes are all at once."""

from __future__ import annotations

from functools import cache

from luced.front.choice import Choice
from luced.text.detokenizer import Detokenizer
from luced.text.tokenizer import Tokenizer, load_tokenizer
from tests.fuzz.choices import Choices, typed
from tests.fuzz.vocabulary import byte_bpe

FIRST_BYTE = 3  # the token of byte 0, in tests.tinygguf
EOS = 2
STOPS = (
    "<|im_start|>", "a<|im_start|>b", "a", "ab", "aab", "\n", "\n\n", "é", "👩🏽\u200d💻", "\u200d", "\ufffd",
    "<|im_end|>", " ", "",
)  # fmt: skip
START, MARK = "<|im_start|>", "\ud800"  # a control token that does not end an answer
TEXTS = ("aab", "ab", "\n\n", "é", "👩🏽\u200d💻", "🇩🇪", "नि", "e\u0301", "<|im_end|>", "\ufffd", "the hello")


def fuzz_answer(data: bytes) -> None:
    choices = Choices(data)
    stops = [choices.pick(STOPS) if choices.flag() else choices.text() for _ in range(choices.below(5))]
    tokens: list[int] = []
    while choices.are_left and len(tokens) < 200:
        if choices.flag():
            tokens += (FIRST_BYTE + byte for byte in choices.pick(TEXTS).encode())
        else:
            tokens.append(choices.below(tokenizer().n_vocab))
    if EOS in tokens:  # where the engine ends
        del tokens[tokens.index(EOS) + 1 :]
    with typed("bad_parameter"):
        choice = Choice(0, tokenizer().pieces(), True, stops, frozenset([EOS]))
        check_stream(choice, tokens, stops, Choices(data[::-1]))


def check_stream(choice: Choice, tokens: list[int], stops: list[str], choices: Choices) -> None:
    """The engine tells of the tokens in any portions."""
    text, found = told_all_at_once(tokens, stops)
    pieces, at = [], 0
    while at < len(tokens) and not choice.finish:
        n = 1 + choices.below(4)
        pieces.append(choice.add(tokens[at : at + n], None))
        at += n
        assert text.startswith(choice.text)
    pieces.append(choice.end("length"))
    shown = [piece for piece in pieces if piece is not None]
    assert "".join(piece.text for piece in shown) == choice.text == text
    assert choice.finish == ("length" if found is None else "stop")
    assert choice.tokens == tokens[: len(choice.tokens)]
    told = [token for piece in shown for token in piece.tokens]
    assert told == choice.tokens[: len(told)]
    assert (
        b"".join(map(tokenizer().token_bytes, choice.tokens)).decode(errors="replace").startswith(text.rstrip("\ufffd"))
    )


def told_all_at_once(tokens: list[int], stops: list[str]) -> tuple[str, str | None]:
    """The text, and the stop string that ended it; START is a character of its own to those that name it, and nothing
    to the others."""
    detokenizer, text = Detokenizer(tokenizer()), ""
    for token in tokens:
        text += detokenizer.push(token) + MARK * (tokenizer().name(token) == START)
    text += detokenizer.flush()
    wanted = dict.fromkeys([*stops, *(stop.replace(START, MARK) for stop in stops)])
    for end in range(1, len(text) + 1):
        here = [stop for stop in wanted if _seen_by(stop, text[:end]).endswith(stop) and text[end - 1] == stop[-1]]
        if here:
            longest = max(here, key=lambda stop: len(stop.replace(MARK, "")))
            shown = text[:end].replace(MARK, "")
            return shown[: len(shown) - len(longest.replace(MARK, ""))], longest
    return text.replace(MARK, ""), None


def _seen_by(stop: str, text: str) -> str:
    return text if MARK in stop else text.replace(MARK, "")


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(byte_bpe())
