"""What holds of connections to the API server, whatever the other side does."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import DeadlineError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.connection import BrokenOffError, Connection
from gpuloom.kube.errors import KubeAccessError
from gpuloom.kube.pool import MAX_CONNECTIONS, ConnectionPool, Origin
from gpuloom.kube.resources import PODS
from gpuloom.runtime.clock import Clock, FakeClock, SystemClock
from tests.unit.kube.raw_server import OK, RawServer, a_raw_server, a_server

QUESTION = b"GET / HTTP/1.1\r\n\r\n"
BINDING = PodBinding("ns", "p", "node")


@asynccontextmanager
async def a_client(server: RawServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeAccess(f"http://127.0.0.1:{server.port}"), SystemClock()) as client:
        yield client


@asynccontextmanager
async def a_pool(port: int, clock: Clock | None = None) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(Origin.of(f"http://127.0.0.1:{port}"), None, clock or SystemClock())
    try:
        yield pool
    finally:
        await pool.close()


async def used_once(pool: ConnectionPool) -> Connection:
    connection = await pool.take(None)
    await connection.ask(QUESTION, whole=True)
    pool.give_back(connection)
    return connection


@pytest.mark.parametrize("verb", ["bind", "replace", "delete"])
async def test_a_write_is_not_sent_again_when_the_server_hangs_up(verb: str) -> None:
    pod = {"metadata": {"namespace": "ns", "name": "p"}}
    async with a_raw_server(OK, None, OK) as server, a_client(server) as client:
        await client.get(PODS, "p", "ns")
        writes = {"bind": lambda: client.bind(BINDING), "delete": lambda: client.delete(PODS, "p", "ns")}
        write = writes.get(verb, lambda: client.replace(PODS, pod))

        with pytest.raises(UnavailableError, match=r"broke off \(the server closed the connection\)"):
            await write()

    assert len(server.requests) == 2


async def test_a_read_is_asked_again_at_once_when_a_kept_connection_turns_out_closed() -> None:
    async with a_raw_server(OK, None, OK) as server, a_client(server) as client:
        await client.get(PODS, "p", "ns")
        answer = await client.get(PODS, "p", "ns")

    assert answer == {}
    assert (len(server.requests), server.connections) == (3, 2)


async def test_a_connection_closed_while_idle_is_not_used_again() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with a_server(answer_once) as port, a_pool(port) as pool:
        first = await used_once(pool)
        await first.lost
        second = await used_once(pool)

    assert second is not first


async def test_what_the_server_says_unasked_is_not_the_answer_to_the_next_request() -> None:
    refusal = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    async with a_raw_server(OK + refusal, OK) as server, a_pool(server.port) as pool:
        first = await pool.take(None)
        said = await first.ask(QUESTION, whole=True)
        pool.give_back(first)
        await first.lost
        second = await pool.take(None)
        answer = await second.ask(QUESTION, whole=True)
        pool.give_back(second)

    assert (said.status, answer.status) == (200, 200)
    assert second is not first


async def test_a_server_that_closes_after_its_answer_is_asked_on_a_new_connection() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with a_raw_server(closing, OK) as server, a_client(server) as client:
        await client.bind(BINDING)
        await client.bind(BINDING)

    assert server.connections == 2


async def test_the_announcement_of_an_answer_is_not_the_answer() -> None:
    async with a_raw_server(b"HTTP/1.1 100 Continue\r\n\r\n" + OK) as server, a_pool(server.port) as pool:
        connection = await pool.take(None)
        answer = await connection.ask(QUESTION, whole=True)
        pool.give_back(connection)

    assert (answer.status, answer.take()) == (200, b"{}")


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with a_raw_server(b'HTTP/1.1 200 OK\r\n\r\n{"a":1}', None) as server, a_pool(server.port) as pool:
        connection = await pool.take(None)
        asking = asyncio.create_task(connection.ask(QUESTION + QUESTION, whole=True))
        answer = await asking
        pool.give_back(connection)

    assert answer.take() == b'{"a":1}'
    assert not connection.reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
    ],
)
async def test_what_is_no_whole_answer_is_an_error(answer: bytes) -> None:
    async def answer_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with a_server(answer_and_hang_up) as port, a_pool(port) as pool:
        connection = await pool.take(None)
        with pytest.raises(BrokenOffError):
            await connection.ask(QUESTION, whole=True)
        pool.give_back(connection)
        reusable = connection.reusable

    assert not reusable


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
    busy = most = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy, most
        while True:
            await reader.readuntil(b"\r\n\r\n")
            busy, most = busy + 1, max(most, busy + 1)
            if busy == MAX_CONNECTIONS:
                full.set()
            await full.wait()
            busy -= 1
            writer.write(OK)

    async with a_server(answer) as port, a_pool(port) as pool:
        used = await asyncio.gather(*(used_once(pool) for _ in range(MAX_CONNECTIONS + 20)))

    assert most == MAX_CONNECTIONS
    assert len(set(used)) == MAX_CONNECTIONS


async def test_a_connection_that_was_idle_for_long_is_not_trusted() -> None:
    clock = FakeClock()
    async with a_raw_server(OK, OK, OK) as server, a_pool(server.port, clock) as pool:
        first = await used_once(pool)
        await clock.advance(59.0)
        soon = await used_once(pool)
        await clock.advance(61.0)
        later = await used_once(pool)

    assert soon is first
    assert later is not first


async def test_a_connection_is_used_only_with_the_certificates_it_was_opened_with() -> None:
    async with a_raw_server(OK, OK) as server, a_pool(server.port) as pool:
        first = await used_once(pool)
        first.context = ssl.create_default_context()
        second = await used_once(pool)

    assert second is not first


async def test_a_reader_who_is_behind_makes_the_server_wait() -> None:
    size = 32 << 20
    sent = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(32):
            writer.write(bytes(1 << 20))
            await writer.drain()
        sent.set()

    async with a_server(answer) as port, a_pool(port) as pool:
        connection = await pool.take(None)
        reply = await connection.ask(QUESTION, whole=False)
        for _ in range(2000):
            await asyncio.sleep(0)
        held_back = not sent.is_set()
        unread = reply.body_bytes
        read = 0
        while chunk := await connection.next_chunk(reply):
            read += len(chunk)
        pool.give_back(connection)
        reusable = connection.reusable

    assert held_back
    assert unread < 2 << 20
    assert read == size
    assert reusable


class Wire(asyncio.Transport):
    """The other side says nothing of itself."""

    def write(self, data: object) -> None:
        return

    def abort(self) -> None:
        return


@given(st.lists(st.integers(1, 40)), st.booleans())
def test_an_answer_is_the_same_however_the_stream_is_cut(cuts: list[int], chunked: bool) -> None:
    body = b'{"metadata":{"name":"p"}}'
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 25"
    said = b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\n%s\r\n\r\n" % framing
    said += b"a\r\n%s\r\nf\r\n%s\r\n0\r\n\r\n" % (body[:10], body[10:]) if chunked else body

    async def read() -> tuple[int, str, bytes]:
        connection = Connection(lambda _: None)
        connection.connection_made(Wire())
        asking = asyncio.create_task(connection.ask(QUESTION, whole=True))
        await asyncio.sleep(0)
        rest = said
        for cut in cuts:
            if rest:
                connection.data_received(rest[:cut])
            rest = rest[cut:]
        if rest:
            connection.data_received(rest)
        answer = await asking
        return answer.status, answer.retry_after, answer.take()

    assert asyncio.run(read()) == (429, "3", body)


@pytest.mark.parametrize(
    ("server", "origin"),
    [
        ("https://kube.example", Origin("kube.example", 443, "kube.example", "")),
        ("https://kube.example:6443/", Origin("kube.example", 6443, "kube.example:6443", "")),
        ("http://[fd00::1]:8001", Origin("fd00::1", 8001, "[fd00::1]:8001", "")),
        ("https://rancher/k8s/clusters/c-1", Origin("rancher", 443, "rancher", "/k8s/clusters/c-1")),
    ],
)
def test_the_address_is_read_from_the_url(server: str, origin: Origin) -> None:
    assert Origin.of(server) == origin


@pytest.mark.parametrize(
    "server", ["https://", "https://h:x", "ftp://h", "https://user:word@h", "https://a..b"]
)
def test_an_address_that_cannot_be_followed_is_refused(server: str) -> None:
    with pytest.raises(KubeAccessError):
        Origin.of(server)
