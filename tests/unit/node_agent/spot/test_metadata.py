"""What becomes of a question to a service that is slow, broken, or hostile."""

import gzip

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuloom.runtime.clock import FakeClock
from services.node_agent.spot.core.problem import MetadataError, Problem
from services.node_agent.spot.metadata import MAX_ANSWER_BYTES
from tests.effort import examples
from tests.unit.node_agent.spot.builders import a_raw_service, a_service, as_time_passes, metadata_at


async def problem_of(url: str, clock: FakeClock | None = None) -> Problem:
    """What is wrong with the answer of this service, whatever time it takes."""
    clock = clock or FakeClock()
    try:
        answer = await as_time_passes(clock, metadata_at(url, clock).get("/", {}))
        answer.content()
    except MetadataError as error:
        return error.problem
    raise AssertionError("there was a good answer")


async def test_an_answer_comes_with_status_headers_and_body() -> None:
    async def handler(request: web.Request) -> web.Response:
        said = f"{request.method} {request.path_qs} {request.headers['Metadata']}"
        return web.Response(status=418, text=said, headers={"Metadata-Flavor": "Google"})

    async with a_service(handler) as url:
        answer = await metadata_at(url + "/").put("/a/b?c=d", {"Metadata": "true"})

    assert (answer.status, answer.body) == (418, b"PUT /a/b?c=d true")
    assert answer.headers["metadata-flavor"] == "Google"


async def test_nobody_there_is_unreachable() -> None:
    async with a_raw_service(b"") as url:
        gone = url

    assert await problem_of(gone) is Problem.UNREACHABLE


async def test_a_service_that_says_nothing_is_left_at_the_deadline() -> None:
    clock = FakeClock()
    async with a_raw_service(None) as url:
        problem = await problem_of(url, clock)

    assert problem is Problem.SLOW
    assert 0.8 <= clock.monotonic() < 2.0


async def test_a_service_that_says_only_half_is_left_at_the_deadline() -> None:
    clock = FakeClock()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"TR")
        await clock.sleep(5.0)
        return response

    async with a_service(handler) as url:
        problem = await problem_of(url, clock)
        await clock.advance(5.0)

    assert problem is Problem.SLOW


async def test_a_redirect_is_not_followed() -> None:
    visited: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        visited.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with a_service(handler) as url:
        answer = await metadata_at(url).get("/here", {})

    assert visited == ["/here"]
    with pytest.raises(MetadataError, match="redirects"):
        answer.content()


@pytest.mark.parametrize("status", [201, 204, 400, 401, 403, 404, 429, 500, 503])
async def test_a_status_that_is_no_answer_is_a_refusal(status: int) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async with a_service(handler) as url:
        answer = await metadata_at(url).get("/", {})

    with pytest.raises(MetadataError, match=str(status)) as raised:
        answer.content()
    assert raised.value.problem is Problem.REFUSED


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_huge_answer_is_not_read_to_its_end(chunked: bool) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if not chunked:
            return web.Response(body=bytes(20 << 20))
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for _ in range(20):
                await response.write(bytes(1 << 20))
        except OSError:
            pass
        return response

    async with a_service(handler) as url:
        assert await problem_of(url) is Problem.MALFORMED


async def test_a_packed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(20 << 20))
    assert len(packed) < MAX_ANSWER_BYTES

    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    async with a_service(handler) as url:
        answer = await metadata_at(url).get("/", {})

    assert answer.body == packed


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(_: web.Request) -> web.Response:
        return web.Response(text="proxy")

    async def service(_: web.Request) -> web.Response:
        return web.Response(text="service")

    async with a_service(proxy) as proxy_url, a_service(service) as url:
        monkeypatch.setenv("http_proxy", proxy_url)
        monkeypatch.setenv("HTTP_PROXY", proxy_url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        answer = await metadata_at(url).get("/", {})

    assert answer.body == b"service"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nTRUE\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nTRUE\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX\x00: y\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n\x00\x01",
    ],
)
async def test_noise_is_no_answer(answer: bytes) -> None:
    async with a_raw_service(answer) as url:
        assert await problem_of(url) in (Problem.UNREACHABLE, Problem.REFUSED)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(
    start=st.sampled_from(
        [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
    ),
    noise=st.binary(max_size=100),
)
async def test_any_bytes_are_an_answer_or_a_problem(start: bytes, noise: bytes) -> None:
    clock = FakeClock()
    async with a_raw_service(start + noise) as url:
        try:
            answer = await as_time_passes(clock, metadata_at(url, clock).get("/", {}))
        except MetadataError:
            return

    assert len(answer.body) <= MAX_ANSWER_BYTES
