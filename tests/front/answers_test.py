"""What a request gets: streams, stop strings, limits, and errors that name what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.front.harness import Client, House, running


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as house:
        yield house


@pytest.fixture
async def client(house: House) -> Client:
    return await house.connect()


async def ask(client: Client, prompt: str, **params: Any) -> tuple[list[str], dict[str, Any]]:
    """(pieces as they were streamed, the one choice)."""
    request = await client.send("complete", prompt=prompt, **params)
    error, result = await client.response(request)
    assert error is None, error
    assert result is not None
    pieces = [fields["text"] for name, fields in client.notes[request] if name == "text"]
    (choice,) = result["choices"]
    if params.get("stream", True):
        assert "".join(pieces) == choice["text"]
    return pieces, choice


async def asked_of_engine(client: Client, **params: Any) -> dict[str, Any]:
    """What the engine gets for a request with these parameters."""
    _, choice = await ask(client, "echo;stop", **params)
    generate: dict[str, Any] = json.loads(choice["text"])
    return generate


async def test_an_answer_streams_and_ends_with_a_result(client: Client) -> None:
    request = await client.send("complete", prompt="say:hello_you", max_tokens=9, seed=7)
    error, result = await client.response(request)
    assert error is None
    assert result is not None
    texts = [fields for name, fields in client.notes[request] if name == "text"]
    assert texts == [{"id": request, "choice": 0, "text": c, "tokens": [3 + ord(c)]} for c in "hello you"]
    assert result["choices"] == [
        {"index": 0, "text": "hello you", "finish": "length", "tokens": [3 + b for b in b"hello you"]}
    ]
    assert result["usage"] == {"prompt": 13, "cached": 1, "generated": 9, "drafted": 0, "accepted": 0}
    assert result["timings"].keys() == {"queue_s", "load_s", "restart_s", "prefill_s", "decode_s", "total_s"}
    assert (result["model"], result["seed"], result["degraded"]) == ("tiny", 7, [])


async def test_progress_tells_of_prefill(client: Client) -> None:
    request = await client.send("complete", prompt="say:a", max_tokens=1, model="tiny")
    while (progress := await client.note(request, "progress"))["phase"] == "load":
        pass
    assert progress == {"id": request, "phase": "prefill", "done": 5, "total": 5, "cached": 1}


async def test_chat_uses_the_template_and_its_end_tokens(client: Client) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "echo;stop"}]
    result = await client.call("chat", messages=messages)
    generate = json.loads(result["choices"][0]["text"])
    prompt = await client.call("template", messages=messages)
    assert generate["prompt"] == prompt["tokens"]
    assert prompt["prompt"].endswith("<|im_start|>user\necho;stop<|im_end|>\n<|im_start|>assistant\n")
    assert generate["stop_ids"] == [0, 2]
    assert generate["boundaries"] == [i for i, token in enumerate(prompt["tokens"], 1) if token == 2]
    assert result["choices"][0]["finish"] == "stop"
    assert 0 not in result["choices"][0]["tokens"]


async def test_parameters_reach_the_engine(client: Client) -> None:
    given = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "typical_p": 0.75, "repetition_penalty": 1.5,
        "frequency_penalty": 0.5, "presence_penalty": -0.5, "seed": 2**64 - 1,
    }  # fmt: skip
    generate = await asked_of_engine(
        client, **given, logit_bias={"5": 1}, stop_ids=[9, 0], priority="batch", logprobs=3
    )
    assert generate["sampling"] == given | {"logit_bias": {"5": 1.0}, "n_logprobs": 3}
    assert generate["stop_ids"] == [0, 2, 9]
    assert generate["priority"] == "batch"
    assert generate["max_tokens"] == 2048 - len("echo;stop")


async def test_a_seed_is_drawn_where_none_is_given(client: Client) -> None:
    first, second = [await client.call("complete", prompt="echo;stop") for _ in range(2)]
    assert first["seed"] != second["seed"]
    assert json.loads(first["choices"][0]["text"])["sampling"]["seed"] == first["seed"]


async def test_without_stream_there_are_no_pieces(client: Client) -> None:
    pieces, choice = await ask(client, "say:ab", max_tokens=2, stream=False)
    assert pieces == []
    assert choice["text"] == "ab"


async def test_no_piece_holds_half_a_code_point(client: Client) -> None:
    pieces, choice = await ask(client, r"say:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82b", max_tokens=11)
    assert pieces == ["a", "é", "€", "🙂", "b"]
    assert len(choice["tokens"]) == 11


async def test_what_is_no_utf8_becomes_replacement_characters(client: Client) -> None:
    _, choice = await ask(client, r"say:a\xffb\xe2\x82", max_tokens=5)
    assert choice["text"] == "a�b�"


async def test_a_stop_string_over_token_boundaries_ends_the_answer(client: Client) -> None:
    pieces, choice = await ask(client, "say:one_two_three;wait", stop=["two t", "never"])
    assert "".join(pieces) == "one "
    assert choice["finish"] == "stop"
    assert choice["tokens"] == [3 + b for b in b"one "]
    _, log = await ask(client, "log;stop")
    assert "Truncate 1 0 9" in json.loads(log["text"])


async def test_a_stop_string_that_does_not_come_holds_nothing_back(client: Client) -> None:
    pieces, choice = await ask(client, "say:one_tw", max_tokens=6, stop=["two"])
    assert pieces[-1] == "tw"
    assert choice["finish"] == "length"
    assert choice["text"] == "one tw"


async def test_max_tokens_0_fills_the_cache_alone(client: Client) -> None:
    pieces, choice = await ask(client, "say:abc", max_tokens=0)
    assert pieces == []
    assert choice == {"index": 0, "text": "", "finish": "length", "tokens": []}


async def test_several_answers(client: Client) -> None:
    request = await client.send("complete", prompt="say:ab", n=3, max_tokens=2)
    _, result = await client.response(request)
    assert result is not None
    assert [(c["index"], c["text"]) for c in result["choices"]] == [(0, "ab"), (1, "ab"), (2, "ab")]
    assert result["usage"]["generated"] == 6
    assert {f["choice"] for name, f in client.notes[request] if name == "text"} == {0, 1, 2}


async def test_logprobs_come_with_pieces_and_result(client: Client) -> None:
    request = await client.send("complete", prompt=r"say:\xc3\xa9", max_tokens=2, logprobs=1)
    _, result = await client.response(request)
    assert result is not None
    one = [{"id": 3 + b, "bytes": bytes([b]), "logprob": -0.5} for b in b"\xc3\xa9"]
    expected = [entry | {"top": [entry]} for entry in one]
    assert result["choices"][0]["logprobs"] == expected
    (piece,) = [f for name, f in client.notes[request] if name == "text"]
    assert piece["logprobs"] == expected


async def test_a_prompt_of_token_ids_goes_as_it_is(client: Client) -> None:
    ids = [3 + b for b in b"echo;stop"]
    request = await client.call("complete", prompt=ids, ignore_eos=True, stop_ids=[4])
    generate = json.loads(request["choices"][0]["text"])
    assert generate["prompt"] == ids
    assert generate["stop_ids"] == [4]


async def test_an_empty_prompt_is_the_bos_token(client: Client) -> None:
    prompts: list[str | list[int]] = ["", []]
    for prompt in prompts:
        result = await client.call("complete", prompt=prompt, max_tokens=3)
        assert result["usage"]["prompt"] == 1
        assert result["choices"][0]["text"] == "abc"


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"model": "tinny"}, "unknown_model", "tiny"),
        ({"max_token": 3}, "unknown_parameter", "max_tokens"),
        ({"temperature": -1.0}, "bad_parameter", "temperature"),
        ({"prompt": None}, "missing_parameter", "prompt"),
        ({"prompt": [3, 300]}, "bad_parameter", "no token 300"),
        ({"prompt": [-1]}, "bad_parameter", "no token -1"),
        ({"stop_ids": [300]}, "bad_parameter", "stop_ids"),
        ({"logit_bias": {"300": 1.0}}, "bad_parameter", "logit_bias"),
        ({"stop": [""]}, "bad_parameter", "stop"),
        ({"max_tokens": 2046}, "context_too_long", "2046"),
        ({"prompt": [3] * 2048}, "context_too_long", "2048"),
        ({"prompt": [3] * 2049, "max_tokens": 0}, "context_too_long", "2049"),
        ({"prompt": "x" * 1_000_000}, "context_too_long", "1000000"),
        ({"model": "bad"}, "bad_model_file", "bad.gguf"),
        ({"prompt": "fail"}, "no_memory", "memory"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(client: Client, params: dict[str, Any], code: str, words: str) -> None:
    error = await client.refused("complete", **{"prompt": "say", **params})
    assert error["name"] == code
    assert words in error["message"]
    assert error["remedy"]
    assert (await ask(client, "say:a", max_tokens=1))[1]["text"] == "a"


async def test_a_context_that_is_just_long_enough(client: Client) -> None:
    _, choice = await ask(client, "say", max_tokens=2045)
    assert len(choice["tokens"]) == 2045
    error = await client.refused("complete", prompt=[3] * 2048)
    assert error["data"] == {"n_prompt": 2048, "n_ctx": 2048}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ([{"role": "user"}], "content"),
        ([{"role": "robot", "content": "x"}], "role"),
        ([{"role": "user", "content": "x", "name": "y"}], "name"),
    ],
)
async def test_messages_are_checked(client: Client, messages: list[Any], words: str) -> None:
    error = await client.refused("chat", messages=messages)
    assert error["actor"] == "caller"
    assert words in error["message"]


async def test_text_methods_need_no_engine(client: Client, house: House) -> None:
    tokens = (await client.call("tokenize", text="aé<|im_end|>", pieces=True))["tokens"]
    assert tokens[:3] == [3 + b for b in "aé".encode()]
    special = await client.call("tokenize", text="a<|im_end|>", special=True, pieces=True)
    assert special == {"tokens": [100, 2], "pieces": [b"a", b""]}
    assert await client.call("detokenize", tokens=[100, 2]) == {"text": "a<|im_end|>"}
    assert (await client.refused("detokenize", tokens=[300]))["name"] == "bad_parameter"
    assert house.daemon.residency.residents == {}
