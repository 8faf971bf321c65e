"""What holds of connections to the API server, whatever the other side does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpuloom.errors import DeadlineError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.errors import KubeAccessError
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import PODS
from gpuloom.kube.transport import MAX_CONNECTIONS
from gpuloom.runtime.clock import FakeClock, SystemClock
from tests.unit.kube.raw_server import OK, a_raw_server, a_server

BINDING = PodBinding("ns", "p", "node")


@asynccontextmanager
async def a_client(port: int, access: KubeAccess | None = None) -> AsyncIterator[KubeClient]:
    async with KubeClient(access or KubeAccess(f"http://127.0.0.1:{port}"), SystemClock()) as client:
        yield client


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("verb", ["bind", "replace", "delete", "patch", "create"])
async def test_a_write_is_not_sent_again_when_the_server_hangs_up(verb: str, kept: bool) -> None:
    pod = {"metadata": {"namespace": "ns", "name": "p"}}
    answers = (OK, None, OK) if kept else (None, OK)
    async with a_raw_server(*answers) as server, a_client(server.port) as client:
        if kept:
            await client.get(PODS, "p", "ns")
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "bind": lambda: client.bind(BINDING),
            "replace": lambda: client.replace(PODS, pod),
            "delete": lambda: client.delete(PODS, "p", "ns"),
            "patch": lambda: client.patch(PODS, "p", "ns", {}),
            "create": lambda: client.create(PODS, pod),
        }

        with pytest.raises(UnavailableError, match=r"broke off \(ServerDisconnectedError\)"):
            await writes[verb]()

    assert len(server.requests) == len(answers) - 1


async def test_a_read_is_asked_again_at_once_when_a_kept_connection_turns_out_closed() -> None:
    async with a_raw_server(OK, None, OK) as server, a_client(server.port) as client:
        await client.get(PODS, "p", "ns")
        answer = await client.get(PODS, "p", "ns")

    assert answer == {}
    assert (len(server.requests), server.connections) == (3, 2)


async def test_a_connection_is_kept_until_the_server_closes_it() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with a_raw_server(OK, closing, OK) as server, a_client(server.port) as client:
        for _ in range(3):
            await client.bind(BINDING)

    assert server.connections == 2


async def test_what_the_server_says_unasked_is_not_the_answer_to_the_next_request() -> None:
    asked = 0
    refusal = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(OK)
        await writer.drain()
        if asked == 1:
            writer.write(refusal)
        await reader.read()

    async with a_server(answer) as port, a_client(port) as client:
        await client.get(PODS, "p", "ns")
        await turns()
        second = await client.get(PODS, "p", "ns")

    assert (second, asked) == ({}, 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 10_000,
    ],
)
async def test_what_is_no_whole_answer_is_an_error(answer: bytes) -> None:
    async def answer_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with a_server(answer_and_hang_up) as port, a_client(port) as client:
        with pytest.raises(UnavailableError):
            await client.bind(BINDING)


async def test_an_answer_after_the_deadline_reaches_nobody() -> None:
    asked, late = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            asked.set()
            await late.wait()
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"late":1}')
        writer.write(OK)

    clock = FakeClock()
    async with (
        a_server(answer) as port,
        KubeClient(KubeAccess(f"http://127.0.0.1:{port}"), clock) as client,
    ):
        binding = asyncio.create_task(client.bind(BINDING, timeout_s=5.0))
        await asked.wait()
        await clock.advance(5.0)
        with pytest.raises(DeadlineError):
            await binding
        late.set()
        read = await client.get(PODS, "p", "ns")

    assert read == {}


async def test_a_burst_opens_no_more_connections_than_allowed() -> None:
    full = asyncio.Event()
    busy = most = opened = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy, most, opened
        opened += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            busy, most = busy + 1, max(most, busy + 1)
            if busy == MAX_CONNECTIONS:
                full.set()
            await full.wait()
            busy -= 1
            writer.write(OK)

    async with a_server(answer) as port, a_client(port) as client:
        await asyncio.gather(*(client.get(PODS, "p", "ns") for _ in range(MAX_CONNECTIONS + 20)))

    assert (most, opened) == (MAX_CONNECTIONS, MAX_CONNECTIONS)


async def test_a_reader_who_is_behind_makes_the_server_wait() -> None:
    line = b'{"type": "ADDED", "object": {"metadata": {"name": "%s"}}}\n' % (b"x" * (1 << 20))
    sent = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (32 * len(line)))
        for _ in range(32):
            writer.write(line)
            await writer.drain()
        sent.set()

    async with a_server(answer) as port, a_client(port) as client:
        events = client.watch(PODS, "1")
        await anext(events)
        await turns()
        held_back = not sent.is_set()
        rest = [event async for event in events]

    assert held_back
    assert len(rest) == 31


async def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    async with a_raw_server(OK) as server, a_client(server.port) as client:
        await client.bind(BINDING)

    assert len(server.requests) == 1


@pytest.mark.parametrize("token", ["two\r\nX-Admin: true", "a b", "tokén", "nul\0"])
async def test_a_token_that_would_not_stay_in_its_header_is_not_sent(token: str) -> None:
    async with a_raw_server(OK) as server:
        access = KubeAccess.with_token(f"http://127.0.0.1:{server.port}", token)
        async with a_client(server.port, access) as client:
            with pytest.raises(KubeAccessError):
                await client.bind(BINDING)

    assert server.requests == []


async def test_a_path_is_put_behind_that_of_the_server_and_values_are_encoded() -> None:
    async with a_raw_server(OK) as server:
        access = KubeAccess(f"http://127.0.0.1:{server.port}/k8s/clusters/c-1/")
        async with a_client(server.port, access) as client:
            await client.list(PODS, Selection("ns", label_selector="a=b,c in (d)"), page_size=5)

    line = server.requests[0].partition(b"\r\n")[0].decode()
    query = "labelSelector=a%3Db%2Cc%20in%20%28d%29&limit=5"
    assert line == f"GET /k8s/clusters/c-1/api/v1/namespaces/ns/pods?{query} HTTP/1.1"


@pytest.mark.parametrize("server", ["https://", "https://h:x", "ftp://h", "https://user:word@h", "kube"])
async def test_an_address_that_cannot_be_followed_is_refused(server: str) -> None:
    with pytest.raises(KubeAccessError):
        async with KubeClient(KubeAccess(server), SystemClock()):
            pass


async def turns() -> None:
    """Let real sockets do their part."""
    for _ in range(2000):
        await asyncio.sleep(0)
