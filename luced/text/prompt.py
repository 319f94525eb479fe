"""What a model is asked, as it reads it."""

from __future__ import annotations

from typing import NamedTuple


class Prompt(NamedTuple):
    """boundaries: token counts at which a turn ends, for the prefix cache."""

    text: str
    tokens: list[int]
    boundaries: list[int]
