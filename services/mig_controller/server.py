"""The controller's gRPC service: what is cut how, and what it would take to cut it otherwise."""

from collections.abc import Callable

from gpuloom.codec.mig import cards_to_proto, demand_from_proto, fit_to_proto
from gpuloom.model.mig_cards import (
    MigCard,
    MigCards,
    MigSlice,
    PlannedCard,
    PlannedFit,
    PlannedMove,
    WaitingPod,
)
from gpuloom.model.sharing import MigStage
from gpuloom.v1 import mig_controller_pb2 as pb
from gpuloom.v1.mig_controller_pb2_grpc import MigControllerServiceServicer
from services.mig_controller.controller import Controller, View
from services.mig_controller.core.cards import Card
from services.mig_controller.core.defragmentation import FitPlan, plan_fit
from services.mig_controller.core.stages import stage_of

ALLOWED_CALLERS = {"ListCards": frozenset({"console", "cli"}), "PlanFit": frozenset({"cli"})}
SERVICE = pb.DESCRIPTOR.services_by_name["MigControllerService"]


class MigControllerServer(MigControllerServiceServicer):
    """`fixed` names pods (namespace/name) that nobody may move."""

    def __init__(self, controller: Controller, fixed: Callable[[], frozenset[str]]) -> None:
        self._controller = controller
        self._fixed = fixed

    async def ListCards(self, request: pb.ListCardsRequest, context: object) -> pb.ListCardsResponse:
        view = self._controller.current()
        cards = tuple(_card(card, view, self._controller.note_of(card.uuid)) for card in view.cards)
        waiting = tuple(WaitingPod(wish.pod, wish.profile, view.note_for(wish)) for wish in view.wishes)
        return cards_to_proto(MigCards(cards, waiting))

    async def PlanFit(self, request: pb.PlanFitRequest, context: object) -> pb.PlanFitResponse:
        demand = demand_from_proto(request.demand)
        found = plan_fit(self._controller.current().cards, demand, fixed=self._fixed())
        return fit_to_proto(_planned(found))


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
    )
