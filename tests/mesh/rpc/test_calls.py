"""Deadlines, errors, retries and metrics of real calls."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    TooLargeError,
    UnavailableError,
)
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.interceptors import RemoteFailureError, UnreachableError
from gpuloom.rpc.streams import ReaderTooSlowError
from gpuloom.runtime.clock import FakeClock
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceStub
from tests.mesh.rpc.builders import (
    Extender,
    a_channel,
    a_mesh,
    an_environment,
    an_extender,
    an_insecure_mesh,
    answer,
    issue,
    list_allocations,
    open_decisions,
)
from tests.mesh.waiting import PATIENCE_S, until


def failing(error: Exception) -> Extender:
    """Fails both ways: at once for a call, after one message for a stream."""

    async def on_list(_request: object, _context: object) -> pb.ListAllocationsResponse:
        raise error

    async def on_watch(_request: object, _context: object) -> AsyncIterator[pb.WatchDecisionsResponse]:
        yield pb.WatchDecisionsResponse()
        raise error

    return Extender(on_list, on_watch)


async def call_raw(channel: aio.Channel, path: str, request: bytes) -> bytes:
    method: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return await method(request, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("page_size must be at most 5000"),
        NotFoundError("no such node"),
        ConflictError("changed meanwhile"),
        NotAllowedError("not for you"),
        NotReadyError("not synced"),
        UnavailableError("broke off"),
        DeadlineError("too late"),
        TooLargeError("too much — ünïcode"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_our_errors_arrive_as_what_they_were(error: GpuloomError) -> None:
    async with an_insecure_mesh(failing(error)) as (_, channel):
        with pytest.raises(type(error)) as from_call:
            await list_allocations(channel)
        async with open_decisions(channel) as messages:
            await anext(messages)
            with pytest.raises(type(error)) as from_stream:
                await anext(messages)

    assert type(from_call.value) is type(from_stream.value) is type(error)
    assert str(from_call.value) == str(from_stream.value) == str(error)


async def test_a_slow_readers_error_tells_it_to_start_over() -> None:
    async with (
        an_insecure_mesh(failing(ReaderTooSlowError("behind"))) as (_, channel),
        open_decisions(channel) as messages,
    ):
        await anext(messages)
        with pytest.raises(TooLargeError, match=r"^behind$"):
            await anext(messages)


async def test_an_unexpected_error_shows_the_caller_only_its_number(caplog: pytest.LogCaptureFixture) -> None:
    secret = RuntimeError("password=hunter2 in /etc/secret")

    async with an_insecure_mesh(failing(secret)) as (_, channel):
        with caplog.at_level(logging.ERROR), pytest.raises(RemoteFailureError) as seen:
            await list_allocations(channel)

    (logged,) = [record for record in caplog.records if record.message == "rpc failed"]
    incident = logged.__dict__["incident"]
    assert str(seen.value) == f"scheduler_extender: internal error, incident {incident}"
    assert logged.exc_info is not None
    assert logged.exc_info[1] is secret


async def test_bytes_that_are_no_message_are_an_invalid_request() -> None:
    async with (
        an_extender(an_environment(None)) as server,
        aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        with pytest.raises(aio.AioRpcError) as refused:
            await call_raw(channel, "/gpuloom.v1.SchedulerExtenderService/ListAllocations", b"\xff\xff\xff")

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "the request is no message of the expected type"


async def test_a_very_long_text_arrives_shortened() -> None:
    async with an_insecure_mesh(failing(InvalidRequestError("ü" * 100_000))) as (_, channel):
        with pytest.raises(InvalidRequestError) as seen:
            await list_allocations(channel)

    assert str(seen.value) == "ü" * 1024


async def test_the_inner_hop_gets_less_time_than_the_outer_one(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    left_s: dict[str, float] = {}

    async with (
        a_mesh(tmp_path, _noting("inner", left_s)) as (_, inner),
        a_mesh(tmp_path, _noting("outer", left_s, inner)) as (_, outer),
    ):
        await list_allocations(outer, timeout_s=4.0)

    assert left_s["inner"] < left_s["outer"] <= 4.0
    assert left_s["inner"] > 2.0


async def test_a_call_without_a_deadline_gets_one(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    left_s: dict[str, float] = {}

    async with a_mesh(tmp_path, _noting("only", left_s)) as (_, channel):
        await list_allocations(channel, timeout_s=None)

    assert 5.0 < left_s["only"] <= 10.0


def _noting(name: str, left_s: dict[str, float], inner: RpcChannel | None = None) -> Extender:
    async def on_list(
        request: pb.ListAllocationsRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.ListAllocationsResponse:
        left_s[name] = context.time_remaining()
        if inner is not None:
            await list_allocations(inner, timeout_s=60.0)
        return await answer(request, context)

    return Extender(on_list)


async def test_a_handler_that_takes_too_long_is_stopped() -> None:
    stopped = asyncio.Event()

    async def never(_request: object, _context: object) -> pb.ListAllocationsResponse:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    async with an_insecure_mesh(Extender(never)) as (_, channel):
        with pytest.raises(DeadlineError):
            await list_allocations(channel, timeout_s=0.2)
        async with asyncio.timeout(PATIENCE_S):
            await stopped.wait()


async def test_a_call_whose_caller_names_no_deadline_ends_at_ours() -> None:
    clock = FakeClock()
    started = asyncio.Event()

    async def endless(_request: object, _context: object) -> pb.ListAllocationsResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        an_extender(RpcEnvironment(None, CollectorRegistry(), clock), Extender(endless)) as server,
        aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call = SchedulerExtenderServiceStub(channel).ListAllocations(pb.ListAllocationsRequest())
        await started.wait()
        await clock.advance(10.0)
        details = await call.details()
        code = await call.code()

    assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "not done within 10 s")


async def test_a_stub_that_outlived_its_connection_fails_in_our_words() -> None:
    async with an_insecure_mesh() as (_, channel):
        stub = channel.stub(SchedulerExtenderServiceStub)

    with pytest.raises(UnreachableError, match="ask for the stub again"):
        await stub.ListAllocations(pb.ListAllocationsRequest(), timeout=PATIENCE_S)


async def test_a_harmless_call_is_tried_again_while_the_server_is_not_ready() -> None:
    attempts = 0

    async def third_time_lucky(
        request: pb.ListAllocationsRequest, context: object
    ) -> pb.ListAllocationsResponse:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise NotReadyError("not synced")
        return await answer(request, context)

    async with an_insecure_mesh(Extender(third_time_lucky)) as (_, channel):
        response = await list_allocations(channel)

    assert response.next_page_token == "answered"
    assert attempts == 3


async def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    async with RpcChannel(an_environment(None), "127.0.0.1:1", "discovery") as channel:
        with pytest.raises(UnreachableError, match=r"^discovery can't be reached: ") as seen:
            await list_allocations(channel)
        with pytest.raises(UnreachableError, match=r"no connection to 127.0.0.1:1 within 0.2 s"):
            await channel.wait_ready(timeout_s=0.2)

    assert seen.value.public_text == "discovery can't be reached"


async def test_where_the_inner_hop_is_stays_inside() -> None:
    async with (
        RpcChannel(an_environment(None), "127.0.0.1:1", "discovery") as inner,
        an_insecure_mesh(_noting("outer", {}, inner)) as (_, channel),
    ):
        with pytest.raises(UnavailableError) as seen:
            await list_allocations(channel)

    assert str(seen.value) == "discovery can't be reached"


async def test_leaving_a_stream_ends_it_on_the_server() -> None:
    ended = asyncio.Event()

    async def on_watch(_request: object, _context: object) -> AsyncIterator[pb.WatchDecisionsResponse]:
        try:
            yield pb.WatchDecisionsResponse()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with an_insecure_mesh(Extender(on_watch=on_watch)) as (_, channel):
        async with open_decisions(channel) as messages:
            await anext(messages)
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


async def test_metrics_count_calls_under_names_of_the_contract_only() -> None:
    registry = CollectorRegistry()

    async with an_extender(an_environment(None, registry), failing(NotFoundError("gone"))) as server:
        async with a_channel(an_environment(None), server) as channel:
            with pytest.raises(NotFoundError):
                await list_allocations(channel)
        async with aio.insecure_channel(f"127.0.0.1:{server.port}") as raw:
            for path in ("/made.up/Thing", "/gpuloom.v1.SchedulerExtenderService/Nothing"):
                with pytest.raises(aio.AioRpcError):
                    await call_raw(raw, path, b"")

    handled = {
        (sample.labels["service"], sample.labels["method"], sample.labels["code"]): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "gpuloom_rpc_server_handled_total"
    }
    assert handled == {
        ("gpuloom.v1.SchedulerExtenderService", "ListAllocations", "NOT_FOUND"): 1,
        ("unknown", "unknown", "UNIMPLEMENTED"): 2,
    }
    assert _in_flight(registry, "server") == {0.0}


async def test_both_sides_count_a_stream_that_was_left(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "cli")
    served, made = CollectorRegistry(), CollectorRegistry()
    serving = an_environment(tls_files(tmp_path, "scheduler_extender"), served)
    calling = an_environment(tls_files(tmp_path, "cli"), made)

    async with (
        an_extender(serving) as server,
        a_channel(calling, server) as channel,
        open_decisions(channel) as messages,
    ):
        await anext(messages)
        open_now = _in_flight(made, "client") | _in_flight(served, "server")

    assert open_now == {1.0}
    # The server's handler hears of it a little later.
    await until(lambda: _in_flight(made, "client") | _in_flight(served, "server") == {0.0})


def _in_flight(registry: CollectorRegistry, side: str) -> set[float]:
    return {
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == f"gpuloom_rpc_{side}_in_flight"
    }
