"""Discovery's gRPC service: all nodes, then their changes.

The feed's messages are encoded already, once for all readers, and go out as they are.
"""

from collections.abc import AsyncIterator

import grpc
from grpc import aio

from gpuloom.errors import NotReadyError
from gpuloom.v1 import discovery_pb2 as pb
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel

ALLOWED_CALLERS = {
    "WatchCluster": frozenset(
        {
            "cost_engine",
            "optimizer",
            "scheduler_extender",
            "mig_controller",
            "autoscaler",
            "webhook",
            "console",
            "cli",
        }
    )
}
SERVICE = pb.DESCRIPTOR.services_by_name["DiscoveryService"]


class DiscoveryServer:
    def __init__(self, model: ReadModel, heartbeat_interval_s: float, metrics: DiscoveryMetrics) -> None:
        self._model = model
        self._heartbeat_interval_s = heartbeat_interval_s
        self._metrics = metrics

    async def WatchCluster(self, request: pb.WatchClusterRequest, context: object) -> AsyncIterator[bytes]:
        unsynced = self._model.unsynced_reason()
        if unsynced:
            raise NotReadyError(f"discovery is not synced: {unsynced}")
        with (
            self._metrics.readers.track_inprogress(),
            self._model.feed.open(not request.without_usage, self._heartbeat_interval_s) as reader,
        ):
            async for message in reader.messages():
                self._metrics.sent_bytes.inc(len(message))
                yield message


def add_to_server(servicer: DiscoveryServer, server: aio.Server) -> None:
    """In place of the generated function, which would encode every message again for every reader."""
    watch = grpc.unary_stream_rpc_method_handler(
        servicer.WatchCluster,
        request_deserializer=pb.WatchClusterRequest.FromString,
        response_serializer=bytes,
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE.full_name, {"WatchCluster": watch})
    server.add_generic_rpc_handlers((handlers,))
