"""A stand-in for discovery with fixed facts: real gRPC, real messages, mutual TLS, no agents behind it.

A thousand simulated agents would need the processor that is being measured. What the extender reads is the
same: the full state once, then heartbeats.
"""

from collections.abc import AsyncIterator, Sequence

from prometheus_client import CollectorRegistry

from gpuloom.codec.facts import node_facts_to_proto
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import Clock
from gpuloom.sim.processes.ports import HOST
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceServicer, add_DiscoveryServiceServicer_to_server
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion

NODES_PER_PART = 250
HEARTBEAT_S = 3.0

_SERVICE = pb.DESCRIPTOR.services_by_name["DiscoveryService"]
_ALLOWED_CALLERS = {"WatchCluster": frozenset({"scheduler_extender"})}
_EPOCH = "bench"


class FixedDiscovery(DiscoveryServiceServicer):
    def __init__(self, facts: Sequence[NodeFacts], clock: Clock) -> None:
        nodes = [node_facts_to_proto(item, with_usage=False) for item in facts]
        starts = range(0, len(nodes), NODES_PER_PART)
        self._parts = [
            pb.ClusterPart(nodes=nodes[start : start + NODES_PER_PART], more=start != starts[-1])
            for start in starts
        ]
        self._clock = clock

    async def WatchCluster(
        self, request: pb.WatchClusterRequest, context: object
    ) -> AsyncIterator[pb.WatchClusterResponse]:
        for part in self._parts:
            yield pb.WatchClusterResponse(version=StreamVersion(epoch=_EPOCH, number=1), full=part)
        while True:
            await self._clock.sleep(HEARTBEAT_S)
            version = StreamVersion(epoch=_EPOCH, number=1, after=1)
            yield pb.WatchClusterResponse(version=version, heartbeat=Heartbeat())


def discovery_server(facts: Sequence[NodeFacts], tls: TlsFiles, clock: Clock) -> RpcServer:
    """Use it as a context manager; `port` tells where it listens."""
    server = RpcServer(RpcEnvironment(tls, CollectorRegistry(), clock), HOST, 0)
    servicer = FixedDiscovery(facts, clock)
    server.add(servicer, add_DiscoveryServiceServicer_to_server, _SERVICE, _ALLOWED_CALLERS)
    return server
