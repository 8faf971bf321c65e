"""What the extender says of itself: its decisions, its ledger, and what it would do."""

from collections import deque
from collections.abc import AsyncIterator, Sequence

from gpuloom.clients.following import keep_following
from gpuloom.codec.device import pod_to_proto
from gpuloom.codec.explanation import explanation_from_proto, forecast_from_proto
from gpuloom.codec.ledger import decision_from_proto, entry_from_proto
from gpuloom.model.explanation import Explanation, Forecast
from gpuloom.model.ledger import Decision, LedgerEntry
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.streams import StreamCursor, StreamGapError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.v1.scheduler_extender_pb2 import (
    ExplainRequest,
    ListAllocationsRequest,
    WatchDecisionsRequest,
    WatchDecisionsResponse,
    WhatIfRequest,
)
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceStub

_SILENCE_S = 15.0
_TIMEOUT_S = 5.0


class DecisionFollower:
    """The newest decisions, oldest first; survives restarts of the extender."""

    def __init__(self, channel: RpcChannel, clock: Clock, keep: int = 200) -> None:
        self.decisions: deque[Decision] = deque(maxlen=keep)
        self._channel = channel
        self._clock = clock

    async def run(self) -> None:
        await keep_following("scheduler_extender", self._follow, Backoff(0.2, 3.0), self._clock)

    async def _follow(self, backoff: Backoff) -> None:
        cursor = StreamCursor()
        stub = self._channel.stub(SchedulerExtenderServiceStub)
        async with open_stream(stub.WatchDecisions(WatchDecisionsRequest())) as messages:
            while (message := await self._next(messages)) is not None:
                backoff.reset()
                kind, version = message.WhichOneof("update"), message.version
                cursor.accept(version.epoch, version.number, version.after, kind == "full")
                if kind == "full":
                    self._extend([decision_from_proto(decision) for decision in message.full.decisions])
                elif kind == "delta":
                    self.decisions.append(decision_from_proto(message.delta))
                elif kind != "heartbeat":
                    raise StreamGapError("a message that is no update")

    async def _next(self, messages: AsyncIterator[WatchDecisionsResponse]) -> WatchDecisionsResponse | None:
        async with deadline(self._clock, _SILENCE_S):
            return await anext(messages, None)

    def _extend(self, decisions: Sequence[Decision]) -> None:
        """A full state repeats what was heard before, and maybe what was heard and dropped since."""
        known = set(self.decisions)
        heard = max((place for place, decision in enumerate(decisions, 1) if decision in known), default=0)
        self.decisions.extend(decisions[heard:])


async def list_allocations(channel: RpcChannel) -> list[LedgerEntry]:
    """The whole ledger, part by part; entries may move between parts while it is read."""
    entries: list[LedgerEntry] = []
    token = ""
    while True:
        request = ListAllocationsRequest(page_token=token)
        stub = channel.stub(SchedulerExtenderServiceStub)
        answer = await stub.ListAllocations(request, timeout=_TIMEOUT_S)
        entries.extend(map(entry_from_proto, answer.entries))
        token = answer.next_page_token
        if not token:
            return entries


async def explain(channel: RpcChannel, pod: PodRef, timeout_s: float) -> Explanation:
    """Why this pod is where it is. An empty UID means whichever has that name; NotFoundError if none has."""
    stub = channel.stub(SchedulerExtenderServiceStub)
    return explanation_from_proto(
        await stub.Explain(ExplainRequest(pod=pod_to_proto(pod)), timeout=timeout_s)
    )


async def what_if(channel: RpcChannel, pod_json: bytes, replicas: int, timeout_s: float) -> Forecast:
    """Where so many replicas of this pod would go."""
    stub = channel.stub(SchedulerExtenderServiceStub)
    request = WhatIfRequest(pod_json=pod_json, replicas=replicas)
    return forecast_from_proto(await stub.WhatIf(request, timeout=timeout_s))
