"""The extender's gRPC service: looking into the ledger and its decisions."""

from collections.abc import AsyncIterator
from itertools import islice

from gpuloom.codec.ledger import decision_to_proto, entry_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceServicer
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.scheduler_extender.decisions import DecisionLog
from services.scheduler_extender.ledger import Ledger

ALLOWED_CALLERS = {"WatchDecisions": frozenset({"cli"}), "ListAllocations": frozenset({"cli"})}

HEARTBEAT_S = 5.0
DEFAULT_PAGE = 500
MAX_PAGE = 5000


class SchedulerExtenderServer(SchedulerExtenderServiceServicer):
    def __init__(self, ledger: Ledger, decisions: DecisionLog) -> None:
        self._ledger = ledger
        self._decisions = decisions

    async def WatchDecisions(
        self, request: pb.WatchDecisionsRequest, context: object
    ) -> AsyncIterator[pb.WatchDecisionsResponse]:
        with self._decisions.feed.subscribe(HEARTBEAT_S) as updates:
            newest = pb.DecisionList(decisions=map(decision_to_proto, self._decisions.newest()))
            version = StreamVersion(epoch=updates.epoch, number=updates.number)
            yield pb.WatchDecisionsResponse(version=version, full=newest)
            async for update in updates:
                if update is None:
                    at = StreamVersion(epoch=updates.epoch, number=updates.number, after=updates.number)
                    yield pb.WatchDecisionsResponse(version=at, heartbeat=Heartbeat())
                else:
                    at = StreamVersion(epoch=updates.epoch, number=update.number, after=update.after)
                    yield pb.WatchDecisionsResponse(version=at, delta=decision_to_proto(update.delta))

    async def ListAllocations(
        self, request: pb.ListAllocationsRequest, context: object
    ) -> pb.ListAllocationsResponse:
        size = request.page_size or DEFAULT_PAGE
        if size > MAX_PAGE:
            raise InvalidRequestError(f"page_size is at most {MAX_PAGE}, not {size}")
        after = _token(request.page_token)
        rest = (entry for entry in self._ledger.entries() if (entry.node_name, entry.pod.uid) > after)
        page = list(islice(rest, size + 1))
        more = len(page) > size
        last = page[size - 1] if more else None
        return pb.ListAllocationsResponse(
            entries=map(entry_to_proto, page[:size]),
            next_page_token="" if last is None else f"{last.node_name}/{last.pod.uid}",
        )


def _token(text: str) -> tuple[str, str]:
    """Entries come by node name and pod UID, so the last one given says where to go on."""
    if not text:
        return "", ""
    node_name, slash, pod_uid = text.partition("/")
    if not slash:
        raise InvalidRequestError("page_token is not one that this call gave")
    return node_name, pod_uid
