"""The port that kube-scheduler calls, over HTTP/2: when it is spoken, and that it serves as HTTP/1.1 does."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from services.scheduler_extender import http
from tests.mesh.rpc.builders import issue
from tests.mesh.scheduler_extender.http2_line import an_http2_line, offering
from tests.mesh.scheduler_extender.kubernetes import JsonObject
from tests.mesh.scheduler_extender.line import a_line
from tests.mesh.scheduler_extender.port import HeldVerbs, PortOptions, a_closed_port, a_port, held
from tests.mesh.waiting import until
from tests.unit.scheduler_extender.builders import a_pod

ASKED: JsonObject = {"Pod": a_pod(), "NodeNames": ["n1", "n2"]}
LARGE: JsonObject = {"Pod": a_pod(), "NodeNames": [f"node-{number}" for number in range(15_000)]}
BIND: JsonObject = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}

BOTH = PortOptions(http2=True)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_either_loop_serves_and_leaves_nothing_behind(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def play() -> tuple[str | None, list[int], int]:
        async with a_closed_port(tmp_path, BOTH) as port:
            tls = offering(tmp_path, "h2", "http/1.1")
            async with port.http, an_http2_line(port.number, tls) as line:
                asked = [("/filter", ASKED), ("/bind", BIND), ("/prioritize", LARGE), ("/filter", LARGE)]
                answers = [await line.post(path, body) for path, body in asked]
            assert not port.http._room.connections
            return line.protocol, [answer.status for answer in answers], len(answers[-1].body)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        protocol, statuses, size = runner.run(play())

    assert protocol == "h2"
    assert statuses == [200, 200, 200, 200]
    assert size > 300_000


@pytest.mark.parametrize(
    ("http2", "offered", "agreed"),
    [
        (True, ("h2", "http/1.1"), "h2"),
        (True, ("http/1.1", "h2"), "h2"),
        (True, ("http/1.1",), "http/1.1"),
        (True, (), None),
        (False, ("h2", "http/1.1"), None),
    ],
)
async def test_it_is_spoken_where_both_want_it(
    tmp_path: Path, http2: bool, offered: tuple[str, ...], agreed: str | None
) -> None:
    async with a_port(tmp_path, PortOptions(http2=http2)) as port:
        tls = offering(tmp_path, *offered)
        async with an_http2_line(port.number, tls) as line:
            protocol = line.protocol
            if protocol == "h2":
                status = (await line.post("/filter", ASKED)).status
        if protocol != "h2":
            async with a_line(port.number, tls) as older:
                status = (await older.post("/filter", ASKED)).status

    assert protocol == agreed
    assert status == 200


async def test_it_is_still_spoken_with_a_new_certificate(tmp_path: Path) -> None:
    async with a_port(tmp_path, BOTH) as port:
        tls = offering(tmp_path, "h2", "http/1.1")
        issue(tmp_path, "scheduler_extender")

        async with an_http2_line(port.number, tls) as line:
            answer = await line.post("/filter", ASKED)

    assert line.protocol == "h2"
    assert answer.status == 200


async def test_calls_that_were_sent_together_are_answered_in_turn(tmp_path: Path) -> None:
    async with (
        a_port(tmp_path, PortOptions(http2=True, verbs=HeldVerbs)) as port,
        an_http2_line(port.number, offering(tmp_path, "h2")) as line,
    ):
        bind, behind = line.ask("/bind", BIND), line.ask("/filter", ASKED)
        await until(lambda: held(port).begun)
        waiting = port.counted("filter", "ok")
        held(port).go.set()
        answers = [await line.answer_to(stream) for stream in (bind, behind)]

    assert waiting is None
    assert [answer.status for answer in answers] == [200, 200]


async def test_an_extender_that_is_not_ready_says_why_and_closes(tmp_path: Path) -> None:
    async with (
        a_port(tmp_path, BOTH) as port,
        an_http2_line(port.number, offering(tmp_path, "h2")) as line,
    ):
        port.unready = "pods and nodes are not listed yet"

        answer = await line.post("/filter", ASKED)
        closed = await line.is_closed()

        assert answer.status == 503
        assert answer.body == b"GPULoom is not ready: pods and nodes are not listed yet\n"
        assert closed
        assert port.counted("filter", "unready") == 1


async def test_a_bind_goes_on_when_its_caller_is_gone(tmp_path: Path) -> None:
    async with a_port(tmp_path, PortOptions(http2=True, verbs=HeldVerbs)) as port:
        async with an_http2_line(port.number, offering(tmp_path, "h2")) as line:
            line.ask("/bind", BIND)
            await until(lambda: held(port).begun)
        await until(lambda: not port.http._room.connections)

        held(port).go.set()
        await until(lambda: port.counted("bind", "ok"))

        assert port.counted("bind", "ok") == 1


async def test_leaving_waits_for_a_bind_and_says_farewell(tmp_path: Path) -> None:
    async with a_closed_port(tmp_path, PortOptions(http2=True, verbs=HeldVerbs)) as port:
        await port.http.__aenter__()
        tls = offering(tmp_path, "h2")
        async with an_http2_line(port.number, tls) as line:
            line.ask("/bind", BIND)
            await until(lambda: held(port).begun)
            leaving = asyncio.create_task(port.http.__aexit__(None, None, None))
            told = await line.hears_farewell()
            held(port).go.set()
            await leaving

        assert told
        assert port.counted("bind", "ok") == 1
        assert not port.http._room.connections


async def test_both_kinds_of_connections_share_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)

    async with (
        a_port(tmp_path, BOTH) as port,
        an_http2_line(port.number, offering(tmp_path, "h2")) as line,
        a_line(port.number, offering(tmp_path)),
    ):
        with pytest.raises(OSError):  # noqa: PT011 (TLS may say it in several ways)
            await asyncio.open_connection("127.0.0.1", port.number, ssl=offering(tmp_path, "h2"))
        served = await line.post("/filter", ASKED)

    assert served.status == 200
