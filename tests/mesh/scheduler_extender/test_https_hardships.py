"""The same port under callers that are slow, hostile, many or gone, and while it is being closed."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import uvloop

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import FakeClock
from services.scheduler_extender.verbs import https
from services.scheduler_extender.verbs.https import BODY_S, IDLE_S, TAKE_S
from services.scheduler_extender.verbs.verbs import Verbs
from tests.mesh.scheduler_extender.kubernetes import JsonObject
from tests.mesh.scheduler_extender.line import a_line, shown_by
from tests.mesh.scheduler_extender.port import HeldVerbs, PortOptions, a_closed_port, a_port, held
from tests.mesh.waiting import until
from tests.unit.scheduler_extender.builders import a_pod

ASKED: JsonObject = {"Pod": a_pod(), "NodeNames": ["n1", "n2"]}
BIND: JsonObject = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}

MANY_CALLS = 150
"""Whose large answers together are more than two systems keep for a client that does not read."""

HEAD = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: "
CALL = HEAD + b"%d\r\n\r\n" % len(orjson.dumps(ASKED)) + orjson.dumps(ASKED)
NOT_HTTP = {
    "noise": b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n",
    "two lengths": HEAD + b"1\r\nContent-Length: 2\r\n\r\n{}",
    "length and chunks": HEAD + b"1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no length": HEAD + b"-1\r\n\r\n{}",
    "bad chunk": b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n",
    "long line": b"POST /" + b"x" * 100_000,
    "long field": HEAD + b"2\r\nX: " + b"y" * 100_000,
    "many fields": HEAD + b"2\r\n" + b"X: y\r\n" * 10_000,
    "long trailer": b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
    + b"y" * 100_000,
}

GIANT_BYTES = 20 * 1024 * 1024
MANY_NAMES = [f"node-{number:06}" for number in range(GIANT_BYTES // 14)]
GIANTS: dict[str, Callable[[], bytes]] = {
    "names": lambda: orjson.dumps({"Pod": a_pod(), "NodeNames": MANY_NAMES}),
    "nesting": lambda: b'{"Pod":' + b"[" * GIANT_BYTES,
    "zeros": lambda: b"\0" * GIANT_BYTES,
    "text": lambda: b'{"Pod": "' + b"x" * GIANT_BYTES + b'"}',
}


class FailingVerbs(Verbs):
    def answer_at_once(self, verb: str, body: bytes) -> bytes:
        if verb == "filter":
            raise ZeroDivisionError("secret")
        raise UnavailableError("the other side is gone")

    async def bind(self, body: bytes) -> bytes:
        raise ZeroDivisionError("secret")


def a_call_with_a_large_answer() -> bytes:
    names = [f"node-{number:06}" for number in range(4000)]
    body = orjson.dumps({"Pod": a_pod(), "NodeNames": names})
    return f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_either_loop_serves_and_leaves_nothing_behind(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def play() -> tuple[list[int], bool]:
        async with a_closed_port(tmp_path) as port:
            tls = shown_by(tmp_path, "kube_scheduler")
            async with port.http, a_line(port.number, tls) as line, a_line(port.number, tls):
                large = {"Pod": a_pod(), "NodeNames": [f"node-{number}" for number in range(15_000)]}
                asked = [("/filter", ASKED), ("/bind", BIND), ("/prioritize", large), ("/filter", large)]
                statuses = [(await line.post(path, body)).status for path, body in asked]
                refused = await line.ask("GET", "/filter")
                ended = await line.is_closed()
            assert not port.connections
            return [*statuses, refused.status], ended

    with asyncio.Runner(loop_factory=new_loop) as runner:
        statuses, ended = runner.run(play())

    assert statuses == [200, 200, 200, 200, 405]
    assert ended


@pytest.mark.parametrize("verb", ["filter", "bind"])
@pytest.mark.parametrize("kind", GIANTS)
async def test_a_giant_body_is_refused_and_the_next_call_served(tmp_path: Path, verb: str, kind: str) -> None:
    giant = GIANTS[kind]()

    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        async with a_line(port.number, tls) as line:
            refused = await line.post(f"/{verb}", giant)
        async with a_line(port.number, tls) as line:
            served = await line.post("/filter", ASKED)

        assert refused.status == 400
        assert len(refused.body) < 1000
        assert port.counted(verb, "invalid") == 1
        assert served.status == 200


async def test_a_call_that_is_broken_off_leaves_nothing_behind(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(
            b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n" + b" " * 10_000_000
        )
        await writer.drain()
        writer.transport.abort()
        await until(lambda: not port.connections)

        async with a_line(port.number, tls) as line:
            served = await line.post("/filter", ASKED)

        assert served.status == 200
        assert port.counted("filter", "ok") == 1


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, b"\r\n"]
)
async def test_who_speaks_no_tls_is_hung_up_on(tmp_path: Path, noise: bytes) -> None:
    async with a_port(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(noise)
        writer.write_eof()
        try:
            await reader.read()
        except ConnectionError:
            pass
        writer.close()

        async with a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line:
            served = await line.post("/filter", ASKED)

        assert served.status == 200


async def test_a_handshake_has_a_time_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "HANDSHAKE_S", 0.05)

    async with a_port(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        await until(lambda: port.connections)
        said = await reader.read()
        writer.close()
        await until(lambda: not port.connections)

        assert said == b""


@pytest.mark.parametrize("said", [b"", HEAD, CALL, CALL + HEAD])
async def test_a_head_has_a_time_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(https, "IDLE_S", 0.2)

    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(said)
        answered = await reader.read()
        writer.close()

        assert answered.count(b"HTTP/1.1 200 OK") == (CALL in said)
        assert IDLE_S > 90.0, "Go hangs up after so long, and must be the first to"


async def test_a_body_has_a_time_to_come_that_bytes_do_not_extend(tmp_path: Path) -> None:
    clock = FakeClock()

    async with a_port(tmp_path, PortOptions(clock=clock)) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await until(lambda: port.waits)
        await clock.advance(BODY_S - 1.0)
        writer.write(b" ")
        early = port.counted("filter", "invalid")
        await clock.advance(1.0)
        said = await reader.read()
        writer.close()

        assert early is None
        assert said.startswith(b"HTTP/1.1 408 ")
        assert port.counted("filter", "invalid") == 1


@pytest.mark.parametrize("form", NOT_HTTP)
async def test_what_is_no_whole_request_within_the_bounds_is_refused(tmp_path: Path, form: str) -> None:
    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(NOT_HTTP[form])
        said = await reader.read()
        writer.close()
        async with a_line(port.number, tls) as line:
            served = await line.post("/filter", ASKED)

        assert said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
        assert served.status == 200
        assert port.counted("filter", "ok") == 1


async def test_a_body_that_is_announced_too_large_is_refused_while_it_still_comes(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        head = f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {https.MAX_BODY_BYTES + 1}\r\n\r\n"
        writer.write(head.encode() + b"x" * 1_000_000)
        said = await reader.readuntil(b"bytes\n")
        writer.close()

        assert said.startswith(b"HTTP/1.1 413 ")
        assert port.counted("filter", "invalid") == 1


async def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "MAX_BODY_BYTES", 10_000)

    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"3e8\r\n%s\r\n" % (b"x" * 1000) * 11)
        said = await reader.readuntil(b"bytes\n")
        writer.close()

        assert said.startswith(b"HTTP/1.1 413 ")


async def test_more_connections_than_there_is_room_for_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(https, "MAX_CONNECTIONS", 2)

    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        _, in_handshake = await asyncio.open_connection("127.0.0.1", port.number)
        async with a_line(port.number, tls) as second:
            for _ in range(3):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
            served = await second.post("/filter", ASKED)
        in_handshake.close()
        await until(lambda: not port.connections)
        async with a_line(port.number, tls) as line:
            served_again = await line.post("/filter", ASKED)

    assert (served.status, served_again.status) == (200, 200)
    assert sum("too many connections" in record.message for record in caplog.records) == 1


async def test_a_bind_goes_on_when_its_caller_is_gone(tmp_path: Path) -> None:
    async with a_port(tmp_path, PortOptions(verbs=HeldVerbs)) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await until(lambda: held(port).begun)
        writer.transport.abort()
        await until(lambda: not any(entry.connected for entry in port.http._server.connections))

        held(port).go.set()
        await until(lambda: port.counted("bind", "ok"))

        assert port.counted("bind", "ok") == 1


async def test_who_does_not_read_is_not_answered_further(tmp_path: Path) -> None:
    async with a_port(tmp_path) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(a_call_with_a_large_answer() * MANY_CALLS)
        await until(lambda: port.waits)
        answered = port.counted("filter", "ok") or 0
        for _ in range(MANY_CALLS):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            await reader.readexactly(length)
        writer.close()

        assert answered < MANY_CALLS
        assert port.counted("filter", "ok") == MANY_CALLS


async def test_who_never_takes_its_answer_is_cut_off(tmp_path: Path) -> None:
    clock = FakeClock()

    async with a_port(tmp_path, PortOptions(clock=clock)) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(a_call_with_a_large_answer() * MANY_CALLS)
        await until(lambda: port.waits)
        await clock.advance(TAKE_S)
        await until(lambda: not port.connections)
        writer.close()

        assert (port.counted("filter", "ok") or 0) < MANY_CALLS


async def test_leaving_waits_for_a_bind_that_is_under_way(tmp_path: Path) -> None:
    async with a_closed_port(tmp_path, PortOptions(verbs=HeldVerbs)) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        await port.http.__aenter__()
        async with a_line(port.number, tls) as line, a_line(port.number, tls) as idle:
            asked = asyncio.create_task(line.post("/bind", BIND))
            await until(lambda: held(port).begun)
            leaving = asyncio.create_task(port.http.__aexit__(None, None, None))
            idle_closed = await idle.is_closed()
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", port.number)
            held(port).go.set()
            answer = await asked
            await leaving

        assert idle_closed
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert not port.connections


@pytest.mark.parametrize("gone", [False, True])
async def test_leaving_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(https, "SHUTDOWN_S", 0.1)

    async with a_closed_port(tmp_path, PortOptions(verbs=HeldVerbs)) as port:
        await port.http.__aenter__()
        tls = shown_by(tmp_path, "kube_scheduler")
        _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        _, in_handshake = await asyncio.open_connection("127.0.0.1", port.number)
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await until(lambda: held(port).begun and port.http._handshakes)
        if gone:
            writer.transport.abort()
        await port.http.__aexit__(None, None, None)
        left = port.connections
        writer.close()
        in_handshake.close()

        assert not left
        assert port.counted("bind", "crashed") == 1


async def test_leaving_cuts_off_who_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(https, "SHUTDOWN_S", 0.1)

    async with a_closed_port(tmp_path) as port:
        await port.http.__aenter__()
        tls = shown_by(tmp_path, "kube_scheduler")
        _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=tls)
        writer.write(a_call_with_a_large_answer() * MANY_CALLS)
        await until(lambda: port.waits)
        await port.http.__aexit__(None, None, None)
        left = port.connections
        writer.close()

        assert not left


@pytest.mark.parametrize("verb", ["filter", "bind"])
async def test_what_nobody_foresaw_is_logged_and_told_without_details(
    tmp_path: Path, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_port(tmp_path, PortOptions(verbs=FailingVerbs)) as port:
        tls = shown_by(tmp_path, "kube_scheduler")
        with caplog.at_level(logging.ERROR):
            async with a_line(port.number, tls) as line:
                answer = await line.post(f"/{verb}", ASKED)
                closed = await line.is_closed()

        assert (answer.status, answer.body) == (500, b"internal error\n")
        assert closed
        assert port.counted(verb, "crashed") == 1
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


async def test_a_failure_of_another_kind_is_passing(tmp_path: Path) -> None:
    async with (
        a_port(tmp_path, PortOptions(verbs=FailingVerbs)) as port,
        a_line(port.number, shown_by(tmp_path, "kube_scheduler")) as line,
    ):
        answer = await line.post("/prioritize", ASKED)

        assert (answer.status, answer.body) == (503, b"the other side is gone\n")
        assert port.counted("prioritize", "failed") == 1
