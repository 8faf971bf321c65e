"""The extender's gRPC service: looking into the ledger and its decisions."""

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import groupby, islice

from gpuloom.codec.ledger import decision_to_proto, entry_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.ledger import LedgerEntry
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceServicer
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.scheduler_extender.decisions import DecisionLog
from services.scheduler_extender.ledger import Ledger

ALLOWED_CALLERS = {"WatchDecisions": frozenset({"cli"}), "ListAllocations": frozenset({"cli"})}

HEARTBEAT_S = 5.0
DEFAULT_PAGE = 500
MAX_PAGE = 5000
MAX_DIGITS = 9


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
        rest = ((place, entry) for place, entry in _placed(self._ledger.entries()) if place > after)
        page = list(islice(rest, size + 1))
        more = len(page) > size
        return pb.ListAllocationsResponse(
            entries=(entry_to_proto(entry) for _, entry in page[:size]),
            next_page_token="/".join(map(str, page[size - 1][0])) if more else "",
        )


Place = tuple[str, str, int]


def _placed(entries: Iterable[LedgerEntry]) -> Iterator[tuple[Place, LedgerEntry]]:
    """Each entry with its place in the order: node name, pod UID, and which one of that pair it is."""
    pairs = groupby(entries, key=lambda entry: (entry.node_name, entry.pod.uid))
    for (node_name, pod_uid), owned in pairs:
        for number, entry in enumerate(owned):
            yield (node_name, pod_uid, number), entry


def _token(text: str) -> Place:
    """The place of the last entry given says where to go on."""
    if not text:
        return "", "", 0
    parts = text.split("/")
    if len(parts) != 3 or not (parts[2].isdecimal() and len(parts[2]) <= MAX_DIGITS):
        raise InvalidRequestError("page_token is not one that this call gave")
    return parts[0], parts[1], int(parts[2])
