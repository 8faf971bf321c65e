"""The controller's gRPC service: what is cut how, and what it would take to cut it otherwise."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuloom.codec.mig import (
    begun_to_proto,
    cards_to_proto,
    demand_from_proto,
    fingerprint_from_proto,
    fit_to_proto,
)
from gpuloom.model.mig_cards import (
    BegunChange,
    GpuTenant,
    MigCard,
    MigCards,
    MigSlice,
    PlannedCard,
    PlannedFit,
    PlannedMove,
    WaitingPod,
)
from gpuloom.model.node import PodRef
from gpuloom.model.sharing import MigStage
from gpuloom.placement.keeping import Enforcement, keeping_of
from gpuloom.v1 import mig_controller_pb2 as pb
from gpuloom.v1.mig_controller_pb2_grpc import MigControllerServiceServicer
from services.mig_controller.controller import Controller, View
from services.mig_controller.core.cards import Card
from services.mig_controller.core.defragmentation import FitPlan
from services.mig_controller.core.stages import stage_of

ALLOWED_CALLERS = {
    "ListCards": frozenset({"console", "cli"}),
    "PlanFit": frozenset({"cli"}),
    "ApplyFit": frozenset({"cli"}),
}
SERVICE = pb.DESCRIPTOR.services_by_name["MigControllerService"]


class MigControllerServer(MigControllerServiceServicer):
    """`annotations` of a pod by namespace and name; empty if it is not known."""

    def __init__(
        self,
        controller: Controller,
        annotations: Callable[[PodRef], Mapping[str, str]],
        enforcement: Enforcement,
    ) -> None:
        self._controller = controller
        self._annotations = annotations
        self._enforcement = enforcement

    async def ListCards(self, request: pb.ListCardsRequest, context: object) -> pb.ListCardsResponse:
        view = self._controller.current()
        cards = tuple(
            replace(_card(card, view, self._controller.note_of(card.uuid)), tenants=self._tenants(card))
            for card in view.cards
        )
        waiting = [WaitingPod(wish.pod, wish.profile, view.note_for(wish)) for wish in view.wishes]
        waiting += [WaitingPod(wish.pod, "mps", view.note_for(wish)) for wish in view.shares]
        return cards_to_proto(MigCards(cards, tuple(waiting)))

    async def PlanFit(self, request: pb.PlanFitRequest, context: object) -> pb.PlanFitResponse:
        demand = demand_from_proto(request.demand)
        return fit_to_proto(_planned(await self._controller.fit(demand)))

    async def ApplyFit(self, request: pb.ApplyFitRequest, context: object) -> pb.ApplyFitResponse:
        demand = demand_from_proto(request.demand)
        begun = await self._controller.make_fit(demand, fingerprint_from_proto(request))
        return begun_to_proto(
            BegunChange(intent.id, intent.node_name, intent.request.gpu_uuid) for intent in begun
        )

    def _tenants(self, card: Card) -> tuple[GpuTenant, ...]:
        if card.gpu is None:
            return ()
        found = [
            GpuTenant(
                str(pod),
                device.milli,
                keeping_of(device, card.gpu, self._annotations(pod), self._enforcement).value,
            )
            for pod, device in card.given
        ]
        return tuple(sorted(found, key=lambda tenant: tenant.owner))


def _card(card: Card, view: View, note: str) -> MigCard:
    """With places where slices are being made, so that people see them come."""
    requests = [intent.request for intent in view.intents if intent.request.gpu_uuid == card.uuid]
    going = frozenset[object](place for request in requests for place in request.destroy)
    there = {one.placement for one in card.slices}
    coming = sorted({place for request in requests for place in request.create} - there)
    slices = [
        MigSlice(o.placement, _size(card, o.placement.profile), stage_of(o, going), o.owner)
        for o in card.slices
    ]
    slices += [MigSlice(p, _size(card, p.profile), MigStage.PARTITION_CREATED) for p in coming]
    return MigCard(
        node_name=card.node_name,
        gpu_uuid=card.uuid,
        index=card.index,
        model=card.model,
        stage=MigStage.MIG_ENABLED if card.cut else MigStage.GPU_DISCOVERED,
        memory_slices=card.geometry.memory_slices,
        slices=tuple(sorted(slices, key=lambda one: one.placement)),
        note=note or card.closed,
        sharing=card.sharing,
    )


def _size(card: Card, profile: str) -> int:
    known = card.geometry.profile(profile)
    return 1 if known is None else known.memory_slices


def _planned(found: FitPlan) -> PlannedFit:
    return PlannedFit(
        steps=tuple(
            PlannedCard(
                node_name=step.card.node_name,
                gpu_uuid=step.card.uuid,
                moves=tuple(PlannedMove(m.owner, m.placement, m.price_usd) for m in step.moves),
                destroy=step.destroy,
                create=step.create,
            )
            for step in found.steps
        ),
        there=found.there,
        missing=found.missing,
        stranded=found.stranded,
        fingerprint=found.fingerprint,
    )
