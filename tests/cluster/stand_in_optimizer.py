"""An optimizer that says what a test wants: which pods waste, and what new pods should ask for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from gpuloom.codec.optimization import report_to_proto
from gpuloom.errors import NotFoundError
from gpuloom.model.optimization import WasteReport
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.runtime.clock import Clock
from gpuloom.v1 import optimizer_pb2 as pb
from gpuloom.v1.optimizer_pb2_grpc import OptimizerServiceServicer, add_OptimizerServiceServicer_to_server
from services.optimizer.server import ALLOWED_CALLERS, SERVICE


class StandInOptimizer(OptimizerServiceServicer):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.report = WasteReport()
        self.advice = pb.AdviseResponse()
        self.takes_s = 0.0

    async def Waste(self, request: pb.WasteRequest, context: object) -> pb.WasteResponse:
        return report_to_proto(self.report)

    async def Advise(self, request: pb.AdviseRequest, context: object) -> pb.AdviseResponse:
        await self._clock.sleep(self.takes_s)
        return self.advice

    async def Classify(self, request: pb.ClassifyRequest, context: object) -> pb.ClassifyResponse:
        raise NotFoundError("not asked here")

    async def Predict(self, request: pb.PredictRequest, context: object) -> pb.PredictResponse:
        raise NotFoundError("not asked here")

    async def Hint(self, request: pb.HintRequest, context: object) -> pb.HintResponse:
        raise NotFoundError("not asked here")

    async def Recommend(self, request: pb.RecommendRequest, context: object) -> pb.RecommendResponse:
        raise NotFoundError("not asked here")

    async def Profiles(self, request: pb.ProfilesRequest, context: object) -> pb.ProfilesResponse:
        raise NotFoundError("not asked here")


@asynccontextmanager
async def serving(
    optimizer: StandInOptimizer, certificates: Path, port: int, clock: Clock
) -> AsyncIterator[int]:
    """The port that it is served on."""
    environment = RpcEnvironment(tls_files(certificates, "optimizer"), CollectorRegistry(), clock)
    server = RpcServer(environment, "127.0.0.1", port)
    server.add(optimizer, add_OptimizerServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    async with server:
        yield server.port
