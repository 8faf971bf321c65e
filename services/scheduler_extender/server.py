"""The extender's gRPC services: looking into the ledger, asking what it would do, and holds."""

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import groupby, islice
from typing import Any

import orjson
from google.protobuf.descriptor import ServiceDescriptor

from gpuloom.codec.device import allocated_from_proto, bounded, pod_from_proto, required, shortened
from gpuloom.codec.explanation import explanation_to_proto, forecast_to_proto
from gpuloom.codec.hold import hold_to_proto, owner_from_proto
from gpuloom.codec.ledger import decision_to_proto, entry_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.claims import HoldOwner
from gpuloom.model.ledger import Hold, LedgerEntry
from gpuloom.rpc.identity import caller_of
from gpuloom.rpc.serving import Served
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import (
    HoldServiceServicer,
    SchedulerExtenderServiceServicer,
    add_HoldServiceServicer_to_server,
    add_PlanServiceServicer_to_server,
    add_SchedulerExtenderServiceServicer_to_server,
)
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.holds.holding import Holding
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.inquiries.inquiries import Inquiries
from services.scheduler_extender.planning.server import PlanServer
from services.scheduler_extender.state.ledger_feed import LedgerFeed

ALLOWED_CALLERS = {
    "WatchDecisions": frozenset({"console", "cli"}),
    "ListAllocations": frozenset({"cli"}),
    "WatchLedger": frozenset({"autoscaler", "console", "cli"}),
    "Explain": frozenset({"console", "cli"}),
    "WhatIf": frozenset({"cli"}),
    "TakeHold": frozenset({"mig_controller", "cli"}),
    "RenewHold": frozenset({"mig_controller", "cli"}),
    "ReleaseHold": frozenset({"mig_controller", "cli"}),
    "ListHolds": frozenset({"mig_controller", "cli"}),
    "ListGangs": frozenset({"console", "cli"}),
    "ListReservations": frozenset({"console", "cli"}),
    "CreateReservation": frozenset({"cli"}),
    "DeleteReservation": frozenset({"cli"}),
}
SERVICE = pb.DESCRIPTOR.services_by_name["SchedulerExtenderService"]
HOLD_SERVICE = pb.DESCRIPTOR.services_by_name["HoldService"]
PLAN_SERVICE = pb.DESCRIPTOR.services_by_name["PlanService"]

HEARTBEAT_S = 5.0
DEFAULT_PAGE = 500
MAX_PAGE = 5000
MAX_DIGITS = 9
MAX_POD_BYTES = 1024 * 1024


class SchedulerExtenderServer(SchedulerExtenderServiceServicer):
    def __init__(
        self, ledger: Ledger, feed: LedgerFeed, decisions: DecisionLog, inquiries: Inquiries
    ) -> None:
        self._ledger = ledger
        self._feed = feed
        self._decisions = decisions
        self._inquiries = inquiries

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

    async def WatchLedger(
        self, request: pb.WatchLedgerRequest, context: object
    ) -> AsyncIterator[pb.WatchLedgerResponse]:
        async for message in self._feed.messages(HEARTBEAT_S):
            yield message

    async def Explain(self, request: pb.ExplainRequest, context: object) -> pb.ExplainResponse:
        match request.WhichOneof("subject"):
            case "pod":
                pod = pod_from_proto(request.pod)
                if not pod.name:
                    raise InvalidRequestError("the pod has no name")
                found = await self._inquiries.explain_named(pod.namespace or "default", pod.name, pod.uid)
            case "pod_json":
                found = await self._inquiries.explain(_pod(request.pod_json))
            case _:
                raise InvalidRequestError("name a pod, or give one as JSON")
        return explanation_to_proto(found)

    async def WhatIf(self, request: pb.WhatIfRequest, context: object) -> pb.WhatIfResponse:
        found = await self._inquiries.what_if(_pod(request.pod_json), request.replicas or 1)
        return forecast_to_proto(found)


class HoldServer(HoldServiceServicer):
    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    async def TakeHold(self, request: pb.TakeHoldRequest, context: Any) -> pb.TakeHoldResponse:
        caller = caller_of(context)
        wanted = Hold(
            name=request.name,
            node_name=required(request.node_name, "node name"),
            owner=_owner(request, caller),
            reason=shortened(request.reason) or "no reason given",
            node_uid=bounded(request.node_uid, "node UID"),
            device=allocated_from_proto(request.device) if request.HasField("device") else None,
            taken_by=caller,
        )
        hold = await self._holding.take(wanted, request.ttl_s, allow_used=request.allow_used)
        return pb.TakeHoldResponse(hold=hold_to_proto(hold))

    async def RenewHold(self, request: pb.RenewHoldRequest, context: Any) -> pb.RenewHoldResponse:
        hold = await self._holding.renew(request.name, request.ttl_s, caller_of(context))
        return pb.RenewHoldResponse(hold=hold_to_proto(hold))

    async def ReleaseHold(self, request: pb.ReleaseHoldRequest, context: Any) -> pb.ReleaseHoldResponse:
        await self._holding.release(request.name, caller_of(context))
        return pb.ReleaseHoldResponse()

    async def ListHolds(self, request: pb.ListHoldsRequest, context: object) -> pb.ListHoldsResponse:
        return pb.ListHoldsResponse(holds=map(hold_to_proto, self._holding.list()))


def _owner(request: pb.TakeHoldRequest, caller: str) -> HoldOwner:
    if request.HasField("owner"):
        return owner_from_proto(request.owner)
    return HoldOwner("Service", caller or "unknown")


def served(
    servicer: SchedulerExtenderServer, holds: HoldServer, plans: PlanServer
) -> tuple[Served[Any], ...]:
    """All services, each with the callers of its own RPCs."""
    return (
        Served(plans, add_PlanServiceServicer_to_server, PLAN_SERVICE, callers_of(PLAN_SERVICE)),
        Served(servicer, add_SchedulerExtenderServiceServicer_to_server, SERVICE, callers_of(SERVICE)),
        Served(holds, add_HoldServiceServicer_to_server, HOLD_SERVICE, callers_of(HOLD_SERVICE)),
    )


def callers_of(service: ServiceDescriptor) -> dict[str, frozenset[str]]:
    return {method.name: ALLOWED_CALLERS[method.name] for method in service.methods}


Place = tuple[str, str, int]


def _pod(text: bytes) -> JsonObject:
    if len(text) > MAX_POD_BYTES:
        raise InvalidRequestError(f"pod_json has at most {MAX_POD_BYTES} bytes, not {len(text)}")
    try:
        pod = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InvalidRequestError("pod_json is not JSON") from None
    if not isinstance(pod, dict) or not isinstance(pod.get("spec"), dict):
        raise InvalidRequestError("pod_json is not a pod: an object with a spec")
    return pod


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
