"""A CUDA device fails under the whole daemon: the engine starts again, and the requests go on."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.front.harness import running
from tests.tinygguf import tiny_chat_model

ENGINE = (sys.executable, str(Path(__file__).with_name("cuda_engine.py")))
NEVER = 1 << 30


async def test_a_lost_device_costs_a_pause(tmp_path: Path) -> None:
    tiny_chat_model(tmp_path / "tiny.gguf")
    ends = []
    for launch in (NEVER, 12):  # each engine lasts twelve steps
        async with running(
            tmp_path, (*ENGINE, str(launch), str(tmp_path / f"of {launch}")), state_dir=tmp_path
        ) as house:
            client = await house.connect()
            answer = await client.call(
                "complete", prompt="the model", max_tokens=40, temperature=1, seed=4, ignore_eos=True
            )
            ends.append(answer["choices"])
            engine = (await client.call("status"))["engine"]
            assert (engine["kind"], engine["passed_over"]) == ("cuda:0", [])
            assert (engine["restarts"] > 0) == (launch != NEVER)
            if launch != NEVER:
                assert "exited with status" in engine["last_failure"]
    assert ends[0] == ends[1]


async def test_it_says_that_auto_is_not_on_the_gpu(tmp_path: Path) -> None:
    tiny_chat_model(tmp_path / "tiny.gguf")
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "broken").touch()
    async with running(tmp_path, (*ENGINE, str(NEVER), str(machine)), state_dir=tmp_path) as house:
        client = await house.connect()
        await client.call("load")
        engine = (await client.call("status"))["engine"]
        assert engine["kind"] == "cpu"
        assert "the driver fails: unknown (999)" in engine["passed_over"][0]
