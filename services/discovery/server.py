"""Discovery's gRPC service: all nodes, then their changes."""

from collections.abc import AsyncIterator, Iterator

from gpuloom.codec.facts import node_facts_to_proto
from gpuloom.errors import NotReadyError
from gpuloom.model.snapshot import NodeFacts
from gpuloom.v1 import discovery_pb2 as pb
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceServicer
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.discovery.cluster import Changes
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel

ALLOWED_CALLERS = {"WatchCluster": frozenset({"scheduler_extender", "cli"})}
MAX_PART_BYTES = 4 * 1024 * 1024


class DiscoveryServer(DiscoveryServiceServicer):
    def __init__(self, model: ReadModel, heartbeat_interval_s: float, metrics: DiscoveryMetrics) -> None:
        self._model = model
        self._heartbeat_interval_s = heartbeat_interval_s
        self._metrics = metrics

    async def WatchCluster(
        self, request: pb.WatchClusterRequest, context: object
    ) -> AsyncIterator[pb.WatchClusterResponse]:
        unsynced = self._model.unsynced_reason()
        if unsynced:
            raise NotReadyError(f"discovery is not synced: {unsynced}")
        usage = not request.without_usage
        feed = self._model.with_usage if usage else self._model.without_usage
        with (
            self._metrics.readers.track_inprogress(),
            feed.subscribe(self._heartbeat_interval_s) as updates,
        ):
            epoch, number = updates.epoch, updates.number
            for part in _parts(self._model.facts(), usage):
                version = StreamVersion(epoch=epoch, number=number)
                yield pb.WatchClusterResponse(version=version, full=part)
            async for update in updates:
                if update is None:
                    at = StreamVersion(epoch=epoch, number=updates.number, after=updates.number)
                    yield pb.WatchClusterResponse(version=at, heartbeat=Heartbeat())
                else:
                    at = StreamVersion(epoch=epoch, number=update.number, after=update.after)
                    yield pb.WatchClusterResponse(version=at, delta=_delta(update.delta, usage))


def _parts(facts: tuple[NodeFacts, ...], with_usage: bool) -> Iterator[pb.ClusterPart]:
    """At least one part, so that an empty cluster is a full state too; each well below gRPC's limit."""
    part, part_bytes = pb.ClusterPart(), 0
    for item in facts:
        node = node_facts_to_proto(item, with_usage=with_usage)
        part_bytes += node.ByteSize()
        if part.nodes and part_bytes > MAX_PART_BYTES:
            part.more = True
            yield part
            part, part_bytes = pb.ClusterPart(), node.ByteSize()
        part.nodes.append(node)
    yield part


def _delta(changes: Changes, with_usage: bool) -> pb.ClusterDelta:
    return pb.ClusterDelta(
        nodes=[node_facts_to_proto(item, with_usage=with_usage) for item in changes.facts],
        removed_node_uids=changes.removed_node_uids,
    )
