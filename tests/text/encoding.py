"""Texts as ids, ours and llama.cpp's."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from tests.text.files import Pair

# Anything, and much of what matters.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    st.sampled_from("  \n\t\r\u00a0\u3000ab'sTRE.,;!12٣½éß漢ひ한👍🏽\u200d\u0301\u2581<|>im_endof_turn")
)


def check_encode(pair: Pair, text: str) -> None:
    tokenizer, oracle = pair
    for special, bos in product((False, True), repeat=2):
        assert tokenizer.encode(text, special, bos) == oracle.encode(text, special, bos), (text, special, bos)
