"""Small servers and clients on loopback, with certificates of a development CA."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer, ServerOptions
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1 import scheduler_extender_pb2_grpc as pb_grpc
from tests.mesh.waiting import PATIENCE_S

SERVICE = pb.DESCRIPTOR.services_by_name["SchedulerExtenderService"]
ONLY_CLI = {method.name: frozenset({"cli"}) for method in SERVICE.methods}

List = Callable[[pb.ListAllocationsRequest, Any], Awaitable[pb.ListAllocationsResponse]]
Watch = Callable[[pb.WatchDecisionsRequest, Any], AsyncIterator[pb.WatchDecisionsResponse]]


async def answer(_request: pb.ListAllocationsRequest, _context: Any) -> pb.ListAllocationsResponse:
    return pb.ListAllocationsResponse(next_page_token="answered")


async def one_then_silence(
    _request: pb.WatchDecisionsRequest, _context: Any
) -> AsyncIterator[pb.WatchDecisionsResponse]:
    yield pb.WatchDecisionsResponse(full=pb.DecisionList())
    await asyncio.Event().wait()


class Extender(pb_grpc.SchedulerExtenderServiceServicer):
    def __init__(self, on_list: List = answer, on_watch: Watch = one_then_silence) -> None:
        self._on_list = on_list
        self._on_watch = on_watch

    async def ListAllocations(
        self, request: pb.ListAllocationsRequest, context: Any
    ) -> pb.ListAllocationsResponse:
        return await self._on_list(request, context)

    async def WatchDecisions(
        self, request: pb.WatchDecisionsRequest, context: Any
    ) -> AsyncIterator[pb.WatchDecisionsResponse]:
        async for message in self._on_watch(request, context):
            yield message

    async def WatchLedger(
        self, request: pb.WatchLedgerRequest, context: Any
    ) -> AsyncIterator[pb.WatchLedgerResponse]:
        yield pb.WatchLedgerResponse()

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        return pb.ExplainResponse()

    async def WhatIf(self, request: pb.WhatIfRequest, context: Any) -> pb.WhatIfResponse:
        return pb.WhatIfResponse()


def issue(folder: Path, *services: str) -> None:
    issue_development_certificates(folder, CertificateOrder(services), SystemClock())


def an_environment(tls: TlsFiles | None, registry: CollectorRegistry | None = None) -> RpcEnvironment:
    return RpcEnvironment(tls, registry or CollectorRegistry(), SystemClock())


@asynccontextmanager
async def an_extender(
    environment: RpcEnvironment, servicer: Extender | None = None, options: ServerOptions | None = None
) -> AsyncIterator[RpcServer]:
    server = RpcServer(environment, "127.0.0.1", 0, options)
    server.add(
        servicer or Extender(), pb_grpc.add_SchedulerExtenderServiceServicer_to_server, SERVICE, ONLY_CLI
    )
    async with server:
        yield server


@asynccontextmanager
async def a_mesh(
    folder: Path, servicer: Extender | None = None, caller: str = "cli"
) -> AsyncIterator[tuple[RpcServer, RpcChannel]]:
    """An extender and a channel to it, each with its own environment."""
    serving = an_environment(tls_files(folder, "scheduler_extender"))
    calling = an_environment(tls_files(folder, caller))
    async with an_extender(serving, servicer) as server, a_channel(calling, server) as channel:
        yield server, channel


@asynccontextmanager
async def a_channel(
    environment: RpcEnvironment, server: RpcServer, service: str = "scheduler_extender"
) -> AsyncIterator[RpcChannel]:
    async with RpcChannel(environment, f"127.0.0.1:{server.port}", service) as channel:
        yield channel


async def list_allocations(
    channel: RpcChannel, timeout_s: float | None = PATIENCE_S
) -> pb.ListAllocationsResponse:
    stub = channel.stub(pb_grpc.SchedulerExtenderServiceStub)
    return await stub.ListAllocations(pb.ListAllocationsRequest(), timeout=timeout_s)


@asynccontextmanager
async def open_decisions(
    channel: RpcChannel, timeout_s: float | None = None
) -> AsyncIterator[AsyncIterator[pb.WatchDecisionsResponse]]:
    stub = channel.stub(pb_grpc.SchedulerExtenderServiceStub)
    call = stub.WatchDecisions(pb.WatchDecisionsRequest(), timeout=timeout_s)
    async with open_stream(call) as messages:
        yield messages


@asynccontextmanager
async def an_insecure_mesh(
    servicer: Extender | None = None, options: ServerOptions | None = None
) -> AsyncIterator[tuple[RpcServer, RpcChannel]]:
    """Without TLS, for what has nothing to do with identity."""
    async with (
        an_extender(an_environment(None), servicer, options) as server,
        a_channel(an_environment(None), server) as channel,
    ):
        yield server, channel
