"""The trio client against a fake daemon on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

import luce
from luce import AsyncClient, Client, LuceError, Progress, Text, wire
from luce.aio_streams import AsyncStream
from tests.clients.fake import FakeDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "luced.sock") as fake:
        yield fake


@pytest.fixture
async def client(daemon: FakeDaemon) -> AsyncIterator[AsyncClient]:
    with trio.fail_after(60):
        async with AsyncClient(daemon.path, tenant="mine") as connected:
            yield connected


async def wait_for(daemon: FakeDaemon, method: str) -> wire.Request:
    return await trio.to_thread.run_sync(daemon.wait_for, method)


def test_same_surface() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(luce.AsyncClient) == public(Client)
    assert public(AsyncStream) - {"aclose"} == public(luce.Stream) - {"close"}


async def test_chat(client: AsyncClient) -> None:
    assert client.hello.tenant == "mine"
    stream = client.chat("why is it ©?", system="Be short.")
    assert [piece async for piece in stream] == ["why", " is", " it", " ©?"]
    assert stream.answer.text == "why is it ©?"
    assert (await client.complete("a b").read()).text == "a b"


async def test_events(client: AsyncClient) -> None:
    events = [event async for event in client.chat("progress now").events()]
    assert [type(event) for event in events] == [Progress, Progress, Progress, Text, Text]


async def test_the_small_methods(client: AsyncClient) -> None:
    assert (await client.tokenize("hi", bos=True)).tokens == (1, 104, 105)
    assert await client.detokenize([104, 105]) == "hi"
    assert (await client.template("q", system="s")).prompt == "<system>s<user>q"
    assert [m.name for m in await client.models()] == ["fake"]
    assert (await client.status()).uptime_s == 1.5
    assert await client.api() == {"level": 1}


async def test_many_tasks(client: AsyncClient) -> None:
    texts: dict[int, str] = {}

    async def ask(i: int) -> None:
        texts[i] = "".join([piece async for piece in client.chat(f"this is number {i}")])

    async with trio.open_nursery() as nursery:
        for i in range(50):
            nursery.start_soon(ask, i)
    assert texts == {i: f"this is number {i}" for i in range(50)}


async def test_a_cancelled_loop_cancels(daemon: FakeDaemon, client: AsyncClient) -> None:
    with trio.CancelScope() as scope:
        async for _ in client.chat("wait"):
            scope.cancel()
    assert scope.cancelled_caught
    await wait_for(daemon, "cancel")
    assert (await client.chat("go on").read()).text == "go on"


async def test_who_reads_for_all_may_leave(daemon: FakeDaemon, client: AsyncClient) -> None:
    """Both wait for bytes; the one that holds the socket is cancelled, and the other goes on."""
    first, second = trio.CancelScope(), client.chat("wait")

    async def leave() -> None:
        with first:
            async for _ in client.chat("wait"):
                pass

    async def stay() -> None:
        with pytest.raises(LuceError):
            async for _ in second:
                pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        nursery.start_soon(stay)
        await trio.testing.wait_all_tasks_blocked(0.01)
        first.cancel()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await client.cancel(second.id)


async def test_leaving_the_block_cancels(daemon: FakeDaemon, client: AsyncClient) -> None:
    async with client.chat("wait") as stream:
        async for _ in stream:
            break
    assert (await wait_for(daemon, "cancel")).params == {"id": stream.id}
    with pytest.raises(LuceError) as raised:
        _ = stream.answer
    assert raised.value.name == "cancelled"


async def test_cancelled_before_it_is_sent(daemon: FakeDaemon, client: AsyncClient) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await client.status()
    assert scope.cancelled_caught
    assert (await client.status()).version == "0"
    assert len(daemon.asked("status")) == 1


async def test_before_and_after(client: AsyncClient) -> None:
    stream = client.chat("a")
    for use in (lambda: stream.id, lambda: stream.answer):
        with pytest.raises(RuntimeError):
            use()
    await stream.read()
    assert stream.answer.text == "a"


@pytest.mark.parametrize(
    ("question", "name"), [("die", "connection_lost"), ("garbage", "bad_frame"), ("refuse", "too_large")]
)
async def test_the_connection_breaks(client: AsyncClient, question: str, name: str) -> None:
    async def ask(question: str) -> None:
        with pytest.raises(LuceError) as raised:
            await client.chat(question).read()
        assert raised.value.name == name

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "wait")
        nursery.start_soon(ask, question)
    with pytest.raises(LuceError):
        await client.status()


async def test_errors(client: AsyncClient) -> None:
    with pytest.raises(LuceError) as raised:
        await client.chat("error busy").read()
    assert raised.value.name == "busy"
    with pytest.raises(LuceError) as raised:
        await client.chat("x" * (16 << 20)).read()
    assert raised.value.name == "too_large"
    assert (await client.chat("go on").read()).text == "go on"


async def test_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(LuceError) as raised:
        async with AsyncClient(tmp_path / "none.sock"):
            pass
    assert raised.value.name == "not_running"
