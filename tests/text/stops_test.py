"""Stop strings against a search in the whole text, for any way to cut the text into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luced.errors import RequestError
from luced.text.stops import Stops

ALPHABET = st.sampled_from("abc")
PIECES = st.lists(st.text(ALPHABET, max_size=4), max_size=20)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the first stop string to be complete, the longest of those, and that one."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            longest = max(here, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=1000)
@given(pieces=PIECES, stops=STOPS)
def test_any_pieces_are_cut_as_the_whole_text_is(pieces: list[str], stops: list[str]) -> None:
    cutter = Stops(stops)
    shown = ""
    for n_pushed, piece in enumerate(pieces, 1):
        shown += cutter.push(piece)
        if cutter.found is not None:
            break
        # Held back is just what may become a stop string.
        text = "".join(pieces[:n_pushed])
        held = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert shown == text[: len(text) - held]
        assert cutter.n_tokens == n_contributing(pieces, len(shown))
    shown += cutter.flush()
    assert (shown, cutter.found) == reference("".join(pieces), stops)
    assert cutter.n_tokens == n_contributing(pieces, len(shown))
    assert cutter.flush() == ""


def n_contributing(pieces: list[str], n_chars: int) -> int:
    """Of the pieces that make up the first n_chars characters, how many there are up to the last."""
    if n_chars == 0:
        return 0
    return next(n for n in range(1, len(pieces) + 1) if len("".join(pieces[:n])) >= n_chars)


def test_at_which_token_a_text_ended() -> None:
    stops = Stops(["\nUser:", "###"])
    assert [stops.push(piece) for piece in ("Hello", "", "!\n", "Us")] == ["Hello", "", "!", ""]
    assert (stops.n_tokens, stops.found) == (3, None)
    assert stops.push("er: x") == ""
    assert (stops.n_tokens, stops.found) == (3, "\nUser:")


def test_a_stop_string_at_the_very_beginning() -> None:
    stops = Stops(["ab"])
    assert (stops.push("a"), stops.push("b"), stops.found, stops.n_tokens) == ("", "", "ab", 0)


def test_without_stop_strings_nothing_is_held_back() -> None:
    stops = Stops([])
    assert (stops.push("a"), stops.push(""), stops.push("b"), stops.n_tokens, stops.flush()) == ("a", "", "b", 3, "")


def test_characters_beyond_ascii() -> None:
    stops = Stops(["。👍"])
    assert (stops.push("好。"), stops.push("👍"), stops.found) == ("好", "", "。👍")


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        ("<|a|>", "x "),  # the token has no text, but it is what the caller means
        ("<|a|>y", "x "),
        (" <|a|>", "x"),
        ("<|a|><|b|>", "x y"),
        ("y<|a|>", "x "),
        ("<|b|>z", "x y"),
        ("a|>z", "x yzw"),  # a part of a name means no token
        ("xyz", "x yzw"),
    ],
)
def test_a_stop_string_names_control_tokens(stop: str, shown: str) -> None:
    """Reports: special tokens are not rendered, so an answer cannot be ended by them."""
    tokens = [("x ", ""), ("", "<|a|>"), ("y", ""), ("", "<|a|>"), ("", "<|b|>"), ("zw", "")]
    stops = Stops([stop], frozenset({"<|a|>", "<|b|>", "<|c|>", "<|"}))
    text = ""
    for piece, control in tokens:
        text += stops.push(piece, control)
        if stops.found is not None:
            break
    assert text + stops.flush() == shown
    assert (stops.found is None) == (shown == "x yzw")


def test_a_control_token_may_also_be_spelled_out() -> None:
    stops = Stops(["<|a|>"], frozenset({"<|a|>"}))
    assert [stops.push(piece) for piece in ("x<", "|a", "|>y")] == ["x", "", ""]
    assert (stops.found is not None, stops.n_tokens) == (True, 1)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        Stops(["a", ""])
    assert caught.value.name == "bad_parameter"
