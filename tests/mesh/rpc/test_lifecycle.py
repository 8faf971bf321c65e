"""Starting, being asked for health, draining, stopping."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]

from gpuloom.errors import NotFoundError, NotReadyError, UnavailableError
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.health import HealthServicer
from gpuloom.rpc.server import ListenError, RpcServer, ServerOptions
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1 import scheduler_extender_pb2_grpc as pb_grpc
from tests.mesh.rpc.builders import (
    ONLY_CLI,
    SERVICE,
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
from tests.mesh.waiting import PATIENCE_S

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def check(channel: RpcChannel, service: str = "") -> int:
    stub = channel.stub(health_pb2_grpc.HealthStub)
    status: int = (
        await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
    ).status
    return status


async def test_any_authenticated_caller_may_ask_for_health(tmp_path: Path) -> None:
    issue(tmp_path, "scheduler_extender", "kube_scheduler")

    async with a_mesh(tmp_path, caller="kube_scheduler") as (server, channel):
        at_start = await check(channel)
        by_name = await check(channel, "gpuloom.v1.SchedulerExtenderService")
        await server.set_serving(False)
        later = await check(channel)
        with pytest.raises(NotFoundError):
            await check(channel, "gpuloom.v1.Other")

    assert (at_start, by_name, later) == (SERVING, SERVING, NOT_SERVING)


async def test_those_who_watch_health_are_told_of_the_drain() -> None:
    async with (
        an_extender(an_environment(None)) as server,
        a_channel(an_environment(None), server) as channel,
    ):
        call = channel.stub(health_pb2_grpc.HealthStub).Watch(health_pb2.HealthCheckRequest())
        async with open_stream(call) as messages:
            told = [(await anext(messages)).status]
            drain = asyncio.create_task(server.drain(grace_s=5))
            told += [message.status async for message in messages]
            await drain

    assert told == [SERVING, NOT_SERVING]


async def test_a_drain_that_comes_while_an_answer_is_sent_is_told_too() -> None:
    servicer = HealthServicer(frozenset())
    watch = servicer.Watch(health_pb2.HealthCheckRequest(), cast("Any", None))

    told = [(await anext(watch)).status]
    await servicer.close()
    told += [answer.status async for answer in watch]

    assert told == [SERVING, NOT_SERVING]


async def test_draining_ends_streams_and_lets_calls_finish() -> None:
    started, may_finish = asyncio.Event(), asyncio.Event()

    async def slow(request: pb.ListAllocationsRequest, context: object) -> pb.ListAllocationsResponse:
        started.set()
        await may_finish.wait()
        return await answer(request, context)

    async with an_insecure_mesh(Extender(slow)) as (server, channel), open_decisions(channel) as messages:
        await anext(messages)
        running = asyncio.create_task(list_allocations(channel))
        await started.wait()
        drain = asyncio.create_task(server.drain(grace_s=10))
        with pytest.raises(NotReadyError, match=r"^draining$"):
            await anext(messages)
        with pytest.raises(UnavailableError):
            await list_allocations(channel, timeout_s=0.5)
        assert not drain.done()
        may_finish.set()
        response = await running
        await drain

    assert response.next_page_token == "answered"


async def test_a_call_that_outlives_the_grace_is_broken_off() -> None:
    started = asyncio.Event()

    async def endless(_request: object, _context: object) -> pb.ListAllocationsResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with an_insecure_mesh(Extender(endless)) as (server, channel):
        running = asyncio.create_task(list_allocations(channel))
        await started.wait()
        await server.drain(grace_s=0.1)
        with pytest.raises(UnavailableError):
            await running


async def test_a_reader_finds_the_server_again_after_its_restart() -> None:
    environment = an_environment(None)

    async with an_extender(environment) as first, a_channel(an_environment(None), first) as channel:
        async with open_decisions(channel) as messages:
            await anext(messages)
            await first.drain(grace_s=1)
            with pytest.raises(NotReadyError):
                await anext(messages)
        second = RpcServer(environment, "127.0.0.1", first.port)
        second.add(Extender(), pb_grpc.add_SchedulerExtenderServiceServicer_to_server, SERVICE, ONLY_CLI)
        async with second:
            await channel.wait_ready(timeout_s=PATIENCE_S)
            response = await list_allocations(channel)

    assert response.next_page_token == "answered"


async def test_a_port_in_use_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    async with an_extender(an_environment(None)) as first:
        second = RpcServer(an_environment(None), "127.0.0.1", first.port)
        with pytest.raises(ListenError) as refused:
            await second.__aenter__()

    assert str(refused.value) == f"can't listen on 127.0.0.1 port {first.port}: Address already in use"
    assert capfd.readouterr().err == ""


async def test_an_address_that_is_not_ours_is_one_line() -> None:
    server = RpcServer(an_environment(None), "192.0.2.1", 0)

    with pytest.raises(ListenError, match=r"^can't listen on 192.0.2.1 port 0: "):
        await server.__aenter__()


async def test_reflection_lists_the_services_when_switched_on() -> None:
    options = ServerOptions(reflection=True)

    async with an_insecure_mesh(options=options) as (_, channel):
        stub = channel.stub(reflection_pb2_grpc.ServerReflectionStub)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (reply,) = [reply async for reply in stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE_S)]

    names = {service.name for service in reply.list_services_response.service}
    assert "gpuloom.v1.SchedulerExtenderService" in names


@pytest.mark.parametrize(
    ("allow", "complaint"),
    [
        (
            {"ListAllocations": frozenset({"cli"})},
            "no allow-list for Explain, WatchDecisions, WatchLedger",
        ),
        ({**ONLY_CLI, "DropTables": frozenset({"cli"})}, "allow-list for DropTables"),
    ],
)
def test_an_allow_list_that_does_not_fit_the_contract_is_refused(
    allow: dict[str, frozenset[str]], complaint: str
) -> None:
    server = RpcServer(an_environment(None), "127.0.0.1", 0)

    with pytest.raises(ValueError, match=complaint):
        server.add(Extender(), pb_grpc.add_SchedulerExtenderServiceServicer_to_server, SERVICE, allow)


def test_a_handler_that_would_block_the_loop_is_refused() -> None:
    class Blocking(Extender):
        def ListAllocations(self, request: object, context: object) -> object:  # type: ignore[override]
            return None

    server = RpcServer(an_environment(None), "127.0.0.1", 0)

    with pytest.raises(ValueError, match="ListAllocations must be an async function"):
        server.add(Blocking(), pb_grpc.add_SchedulerExtenderServiceServicer_to_server, SERVICE, ONLY_CLI)
