"""What the configuration says of models, in the running daemon."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.front.harness import Client, running

SETTINGS: dict[str, Any] = {
    "models": {"tiny": {"temperature": 0.25, "top_k": 3}},
    "aliases": {"fast": "tiny"},
}


@asynccontextmanager
async def configured(folder: Path) -> AsyncIterator[Client]:
    async with running(folder, **SETTINGS) as house:
        yield await house.connect()


async def sampling(client: Client, **params: Any) -> dict[str, Any]:
    """How the engine was asked to draw."""
    result = await client.call("complete", prompt="echo", max_tokens=1000, **params)
    generate, _ = json.JSONDecoder().raw_decode(result["choices"][0]["text"])
    found: dict[str, Any] = generate["sampling"]
    return found


async def test_a_models_settings_stand_in_for_what_the_caller_leaves_out(tmp_path: Path) -> None:
    async with configured(tmp_path) as client:
        found = await sampling(client)
        assert (found["temperature"], found["top_k"], found["top_p"]) == (0.25, 3, 0.95)
        assert (await sampling(client, model="fast"))["top_k"] == 3


async def test_what_the_caller_gives_counts_even_if_it_is_the_default(tmp_path: Path) -> None:
    async with configured(tmp_path) as client:
        found = await sampling(client, temperature=0.8, top_k=None)
        assert (found["temperature"], found["top_k"]) == (0.8, 3)


async def test_another_model_has_no_part_in_them(tmp_path: Path) -> None:
    async with configured(tmp_path) as client:
        (tmp_path / "other.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes())
        found = await sampling(client, model="other")
        assert (found["temperature"], found["top_k"]) == (0.8, 40)


async def test_models_shows_aliases_and_settings(tmp_path: Path) -> None:
    async with configured(tmp_path) as client:
        rows = {row["name"]: row for row in (await client.call("models"))["models"]}
        assert rows["tiny"]["settings"] == {"temperature": 0.25, "top_k": 3}
        assert rows["tiny"]["aliases"] == ["fast"]
        assert rows["slow"]["settings"] == {}
