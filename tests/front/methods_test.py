"""load, unload, embed and infill, as a client sees them; the engine is a fake one."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from luced.text.fence import Fence
from tests.front.harness import Client, House, running


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as house:
        yield house


@pytest.fixture
async def client(house: House) -> Client:
    return await house.connect()


async def test_load_and_unload(client: Client) -> None:
    loaded = await client.call("load", model="tiny", keep_alive=-1)
    assert loaded["load_s"] >= 0
    model = loaded["model"]
    assert (model["name"], model["memory"], model["context"], model["until"]) == ("tiny", {"weights": 1000}, 2048, None)
    (row,) = (await client.call("status"))["models"]
    assert (row["name"], row["requests"], row["until"]) == ("tiny", 0, None)
    assert await client.call("unload", model="tiny") == {"unloaded": True}
    assert await client.call("unload", model="tiny") == {"unloaded": False}
    assert (await client.call("status"))["models"] == []


async def test_unload_of_a_model_in_use_must_be_forced(client: Client) -> None:
    request = await client.send("complete", prompt="say:a;wait", max_tokens=5)
    await client.note(request, "text")
    assert (await client.refused("unload", model="tiny"))["name"] == "busy"
    assert await client.call("unload", model="tiny", force=True) == {"unloaded": True}
    error, _ = await client.response(request)
    assert error is not None
    assert error["name"] == "cancelled"
    assert (await client.call("complete", prompt="say:a", max_tokens=1))["choices"][0]["text"] == "a"


async def test_keep_alive_0_unloads_after_the_reply(house: House, client: Client) -> None:
    await client.call("complete", prompt="say:a", max_tokens=1, keep_alive=0)
    while house.daemon.residency.state("tiny") != "here":
        await trio.lowlevel.checkpoint()


async def test_embed(client: Client) -> None:
    result = await client.call("embed", inputs=["ab", [7, 8, 9]], pooling="last")
    for vector, n in zip(result["embeddings"], (2, 3), strict=True):  # the engine's are [n tokens, 1, 2]
        length = math.sqrt(n * n + 5)
        assert vector == pytest.approx([n / length, 1 / length, 2 / length])
    assert (result["model"], result["pooling"], result["usage"]["prompt"]) == ("tiny", "last", 5)
    raw = await client.call("embed", inputs=["ab"], normalise=False)
    assert (raw["embeddings"], raw["pooling"]) == ([[2, 1, 2]], "cls")  # what the engine says that the model wants
    short = await client.call("embed", inputs=["ab"], dimensions=2)
    assert short["embeddings"][0] == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5)])


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"inputs": [""]}, "bad_parameter", "one of them is empty"),
        ({"inputs": [[300]]}, "bad_parameter", "inputs[0]: the model has no token 300"),
        ({"inputs": [[1] * 2049]}, "context_too_long", "2049 tokens"),
        ({"inputs": ["a"], "dimensions": 4}, "bad_parameter", "vectors have 3"),
        ({"inputs": ["a"], "model": "slow"}, "not_supported", "slow (llama) makes no embeddings"),
    ],
)
async def test_embed_refuses(house: House, client: Client, params: dict[str, Any], code: str, words: str) -> None:
    (house.folder / "go").touch()  # `slow` loads at once, and is of an architecture without embeddings
    error = await client.refused("embed", **params)
    assert error["name"] == code
    assert words in error["message"]


async def test_embed_runs_again_when_the_engine_dies(house: House, client: Client) -> None:
    result = await client.call("embed", inputs=["die"], normalise=False)
    assert result["embeddings"] == [[3, 1, 2]]
    assert (await client.call("status"))["engine"]["restarts"] == 1


async def test_infill_without_tokens_for_it_goes_through_the_template(client: Client) -> None:
    result = await client.call("infill", prefix="echo;stop", filename="a.py", extra=[{"filename": "b.py", "text": "b"}])
    assert result["degraded"] == ["tiny has no tokens for text with a hole: it was asked through its chat template"]
    before, after = [await client.call("infill", prefix=p, suffix="s", max_tokens=0) for p in ("x = 1", "x = 12")]
    assert before["choices"][0]["text"] == after["choices"][0]["text"] == ""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("return 1", "return 1"),
        ("```python\\nreturn 1\\n```", "return 1"),
        ("```\\n\\treturn 1\\n```\\nThat_is_it.", "\treturn 1"),
        ("\\n_```py\\na\\nb\\n```", "a\nb"),
        ("__a```b", "  a```b"),
        ("```\\n```", ""),
        ("```py\\na``_\\n``", "a`` \n``"),
        ("``", "``"),
    ],
)
def test_the_fence_comes_off(said: str, shown: str) -> None:
    text = said.replace("\\n", "\n").replace("\\t", "\t").replace("_", " ")
    for size in (1, 2, 3, 100):
        fence = Fence()
        pieces = [fence.push(text[i : i + size]) for i in range(0, len(text), size)]
        assert "".join([*pieces, fence.flush()]) == shown, size


async def test_infill_defaults_are_an_editors(client: Client) -> None:
    result = await client.call("infill", prefix="abc")
    assert result["usage"]["generated"] == 128
    assert json.dumps(result["seed"])
