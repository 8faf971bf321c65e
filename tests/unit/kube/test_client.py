import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.errors import DeadlineError, NotAllowedError, TooLargeError, UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.credentials import Credential
from gpuloom.kube.errors import DisruptionBudgetError, GoneError
from gpuloom.kube.listing import EventType, Selection
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.kube.transport import LineSplitter
from gpuloom.runtime.clock import FakeClock, SystemClock, settle

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def a_client(
    handler: Handler, clock: FakeClock | SystemClock | None = None, registry: CollectorRegistry | None = None
) -> AsyncIterator[KubeClient]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(application) as server:
        access = KubeAccess.with_token(f"http://{server.host}:{server.port}", "secret")
        async with KubeClient(access, clock or SystemClock(), registry) as client:
            yield client


def a_status(code: int, reason: str = "", **details: Any) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": "because", "details": details}
    return web.json_response(body, status=code)


def a_page(names: str, version: str = "7", token: str = "") -> web.Response:
    items = [{"metadata": {"name": name, "namespace": "ns"}} for name in names]
    return web.json_response({"metadata": {"resourceVersion": version, "continue": token}, "items": items})


async def advance_until(clock: FakeClock, task: asyncio.Task[Any], most_s: float) -> None:
    """Let real sockets do their part between steps of fake time."""
    for _ in range(int(most_s)):
        for _ in range(200):
            if task.done():
                return
            await settle()
        await clock.advance(1.0)


async def test_requests_carry_token_and_name_themselves() -> None:
    seen: dict[str, str] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(request.headers)
        return web.json_response({"metadata": {"name": "p"}})

    async with a_client(handler) as client:
        await client.get(PODS, "p", "ns")

    assert seen["Authorization"] == "Bearer secret"
    assert seen["User-Agent"].startswith("gpuloom/")
    assert seen["Accept-Encoding"] == "gzip"


async def test_a_compressed_answer_is_read() -> None:
    async def handler(request: web.Request) -> web.Response:
        body = gzip.compress(b'{"metadata": {"name": "p"}}')
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with a_client(handler) as client:
        pod = await client.get(PODS, "p", "ns")

    assert pod["metadata"]["name"] == "p"


async def test_a_read_is_tried_again_until_the_server_recovers() -> None:
    answers = [a_status(503), a_status(429), web.json_response({"metadata": {"name": "p"}})]
    registry = CollectorRegistry()

    async def handler(request: web.Request) -> web.Response:
        return answers.pop(0)

    clock = FakeClock()
    async with a_client(handler, clock, registry) as client:
        reading = asyncio.create_task(client.get(PODS, "p", "ns", timeout_s=60.0))
        await advance_until(clock, reading, 30.0)
        pod = await reading

    assert pod["metadata"]["name"] == "p"
    labels = {"verb": "get", "resource": "pods", "code": "503"}
    assert registry.get_sample_value("gpuloom_kube_requests_total", labels) == 1.0


async def test_a_read_is_given_up_after_four_tries() -> None:
    tries = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        return a_status(500, "InternalError")

    clock = FakeClock()
    async with a_client(handler, clock) as client:
        reading = asyncio.create_task(client.get(PODS, "p", "ns", timeout_s=60.0))
        await advance_until(clock, reading, 30.0)
        with pytest.raises(UnavailableError, match="get pods ns/p answered 500 InternalError: because"):
            await reading

    assert tries == 4


async def test_a_write_is_never_repeated() -> None:
    tries = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        return a_status(503)

    async with a_client(handler) as client:
        with pytest.raises(UnavailableError):
            await client.create(PODS, {"metadata": {"name": "p", "namespace": "ns"}})

    assert tries == 1


async def test_a_call_without_an_answer_ends_at_its_deadline() -> None:
    asked = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    clock = FakeClock()
    async with a_client(handler, clock) as client:
        binding = asyncio.create_task(client.bind(PodBinding("ns", "p", "node"), timeout_s=5.0))
        await asked.wait()
        await clock.advance(4.9)
        early = binding.done()
        await clock.advance(0.1)
        with pytest.raises(DeadlineError, match="create pods/binding ns/p: no answer within 5 s"):
            await binding

    assert not early


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with KubeClient(KubeAccess("http://127.0.0.1:1"), SystemClock()) as client:
        with pytest.raises(UnavailableError, match="can't be reached"):
            await client.create(PODS, {"metadata": {"name": "p", "namespace": "ns"}})


async def test_an_answer_that_is_not_json_is_no_success() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="<html>login</html>")

    async with a_client(handler) as client:
        with pytest.raises(UnavailableError, match="not a JSON object"):
            await client.create(PODS, {"metadata": {"name": "p", "namespace": "ns"}})


async def test_a_redirect_is_not_followed_with_our_token() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://elsewhere.example/"})

    async with a_client(handler) as client:
        with pytest.raises(Exception, match="answered 307"):
            await client.get(PODS, "p", "ns")


async def test_a_list_is_read_page_by_page_and_starts_over_when_its_state_is_gone() -> None:
    answers = [a_page("a", "7", "next"), a_status(410, "Expired"), a_page("b", "8", "next"), a_page("c", "8")]
    tokens: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        tokens.append(request.query.get("continue", ""))
        return answers.pop(0)

    async with a_client(handler) as client:
        listing = await client.list(PODS, page_size=1)

    assert [item["metadata"]["name"] for item in listing.items] == ["b", "c"]
    assert {item["kind"] for item in listing.items} == {"Pod"}
    assert listing.resource_version == "8"
    assert tokens == ["", "next", "", "next"]


async def test_of_a_list_only_what_is_kept_outlives_its_page() -> None:
    answers, events = [a_page("ab", token="next"), a_page("c")], list[str]()

    async def handler(request: web.Request) -> web.Response:
        events.append("page")
        return answers.pop(0)

    def keep(pod: JsonObject) -> JsonObject:
        events.append(pod["kind"] + pod["metadata"]["name"])
        return {"name": pod["metadata"]["name"]}

    async with a_client(handler) as client:
        listing = await client.list(PODS, Selection(keep=keep), page_size=2)

    assert listing.items == ({"name": "a"}, {"name": "b"}, {"name": "c"})
    assert events == ["page", "Poda", "Podb", "page", "Podc"]


async def test_a_list_that_never_outruns_compaction_is_asked_for_in_one_piece() -> None:
    async def handler(request: web.Request) -> web.Response:
        if "continue" in request.query:
            return a_status(410, "Expired")
        return a_page("a", token="next") if "limit" in request.query else a_page("abc")

    async with a_client(handler) as client:
        listing = await client.list(PODS, page_size=1)

    assert len(listing.items) == 3


async def test_an_event_larger_than_any_read_buffer_is_watched() -> None:
    big = "x" * 3_000_000

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        line = f'{{"type": "ADDED", "object": {{"metadata": {{"name": "{big}"}}}}}}\n'.encode()
        await response.write(line[:100])
        await response.write(line[100:])
        return response

    async with a_client(handler) as client:
        events = [event async for event in client.watch(PODS, "1")]

    assert [(event.type, len(event.object["metadata"]["name"])) for event in events] == [
        (EventType.ADDED, len(big))
    ]


async def test_an_error_event_is_raised_as_its_error() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n')

    async with a_client(handler) as client:
        with pytest.raises(GoneError):
            await anext(client.watch(PODS, "1"))


async def test_a_silent_watch_ends_at_its_idle_timeout() -> None:
    opened = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        opened.set()
        await asyncio.Event().wait()
        return response

    clock = FakeClock()
    async with a_client(handler, clock) as client:
        watching = asyncio.create_task(anext(client.watch(PODS, "1", idle_timeout_s=30.0)))
        await opened.wait()
        await advance_until(clock, watching, 60.0)
        with pytest.raises(DeadlineError, match="no answer within 30 s"):
            await watching


async def test_a_budget_in_the_way_of_an_eviction_says_when_to_come_back() -> None:
    async def handler(request: web.Request) -> web.Response:
        answer = a_status(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget"}])
        answer.headers["Retry-After"] = "10"
        return answer

    async with a_client(handler) as client:
        with pytest.raises(DisruptionBudgetError) as caught:
            await client.evict("ns", "p")

    assert caught.value.retry_after_s == 10.0


async def test_a_refused_token_is_forgotten() -> None:
    class Rotating:
        token = "old"

        async def current(self) -> Credential:
            return Credential(self.token)

        def invalidate(self) -> None:
            self.token = "new"

    async def handler(request: web.Request) -> web.Response:
        if request.headers["Authorization"] == "Bearer old":
            return a_status(401, "Unauthorized")
        return web.json_response({})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(application) as server:
        access = KubeAccess(f"http://{server.host}:{server.port}", Rotating())
        async with KubeClient(access, SystemClock()) as client:
            with pytest.raises(NotAllowedError):
                await client.get(PODS, "p", "ns")
            second = await client.get(PODS, "p", "ns")

    assert second == {}


@given(
    lines=st.lists(st.binary(min_size=1).map(lambda b: b"x" + b.replace(b"\n", b""))), cut=st.integers(1, 9)
)
def test_lines_come_out_whole_however_the_stream_is_cut(lines: list[bytes], cut: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()

    received = [
        line for start in range(0, len(stream), cut) for line in splitter.feed(stream[start : start + cut])
    ]

    assert received == lines


def test_a_line_without_an_end_is_refused_at_its_bound() -> None:
    splitter = LineSplitter(max_line_bytes=10)
    splitter.feed(b"x" * 10)

    with pytest.raises(TooLargeError):
        splitter.feed(b"x")
