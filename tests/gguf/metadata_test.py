"""Typed access to metadata, and which keys were read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luced.errors import ModelError
from luced.gguf.metadata import Metadata

VALUES = {"x.int": 3, "x.float": 0.5, "x.str": "s", "x.bool": True, "x.ints": [1, 2], "x.bools": [True], "x.none": []}


@pytest.fixture
def m() -> Metadata:
    return Metadata(Path("model.gguf"), {**VALUES, "x.nan": math.nan, "y.int": 4})


def test_scalars_and_lists(m: Metadata) -> None:
    assert (m.int("x.int"), m.float("x.float"), m.str("x.str"), m.bool("x.bool")) == (3, 0.5, "s", True)
    assert (m.ints("x.ints", 2), m.bools("x.bools"), m.strs("x.none")) == ([1, 2], [True], [])


def test_a_scalar_stands_for_many(m: Metadata) -> None:
    assert m.ints("x.int", 4) == [3, 3, 3, 3]
    assert m.ints("x.int") == [3]
    assert m.ints("x.absent", 2, default=7) == [7, 7]


def test_defaults(m: Metadata) -> None:
    assert (m.int("a", 0), m.float("a", 0.0), m.str("a", ""), m.bool("a", False)) == (0, 0.0, "", False)
    assert m.get("a") is None
    assert "a" not in m


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda m: m.int("x.absent"), "is missing"),
        (lambda m: m.ints("x.absent", 2), "is missing"),
        (lambda m: m.int("x.float"), "must be int, not float"),
        (lambda m: m.int("x.bool"), "must be int, not bool"),
        (lambda m: m.int("x.float", 1), "must be int, not float"),
        (lambda m: m.float("x.int"), "must be float, not int"),
        (lambda m: m.float("x.nan"), "is nan"),
        (lambda m: m.str("x.ints"), "must be str, not a list of int"),
        (lambda m: m.bool("x.int"), "must be bool, not int"),
        (lambda m: m.ints("x.bools"), "must be a list of int, not a list of bool"),
        (lambda m: m.ints("x.str", 2), "must be a list of int, not str"),
        (lambda m: m.ints("x.ints", 3), "must have 3 values, has 2"),
        (lambda m: m.int("x.none"), "not an empty list"),
    ],
)
def test_wrong_values_name_key_and_file(m: Metadata, read: Callable[[Metadata], Any], why: str) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        read(m)
    assert caught.value.message.startswith("model.gguf: key 'x.")
    assert caught.value.data["file"] == "model.gguf"


def test_unread(m: Metadata) -> None:
    assert m.unread("x.") == [*VALUES, "x.nan"]
    m.int("x.int")
    m.ints("x.ints", 2)
    m.get("x.str")
    assert "x.float" in m
    assert m.unread("x.") == ["x.float", "x.bool", "x.bools", "x.none", "x.nan"]
    assert m.unread("y.") == ["y.int"]
