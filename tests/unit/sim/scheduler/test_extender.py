"""How the scheduler tells of an extender that does not answer; the text reaches the pod's event."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.scheduler.extender import ExtenderSettings, HttpExtender
from gpuloom.sim.scheduler.wire import ExtenderError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
    await writer.drain()
    writer.close()


async def said_by_filter(url: str) -> str:
    async with HttpExtender(ExtenderSettings(url), SystemClock()) as extender:
        with pytest.raises(ExtenderError) as failure:
            await extender.filter({"metadata": {"name": "p"}}, ["n1"])
    return str(failure.value)


async def test_a_refused_connection_is_told_in_words() -> None:
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()

    said = await said_by_filter(f"http://127.0.0.1:{port}")

    assert said == f"failed filter with extender: can't reach 127.0.0.1:{port}: connection refused"


@pytest.mark.parametrize(("handler", "why"), [(hang_up, "the connection broke off"), (babble, "is not HTTP")])
async def test_no_name_of_an_exception_reaches_the_pod(handler: Handler, why: str) -> None:
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        said = await said_by_filter(f"http://127.0.0.1:{port}")

    assert why in said
    assert "Error" not in said
