"""What the MIG controller shows: proto <-> model."""

from collections.abc import Iterable, Mapping

from gpuloom.codec.allocation import MIG_PROFILE
from gpuloom.codec.device import (
    bounded,
    placement_from_proto,
    placement_to_proto,
    pod_from_proto,
    pod_to_proto,
    required,
    sharing_mode_from_proto,
    sharing_mode_to_proto,
    shortened,
)
from gpuloom.errors import InvalidRequestError
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
from gpuloom.model.sharing import MigStage
from gpuloom.v1 import mig_controller_pb2 as pb

MAX_PROFILES = 64
MAX_COUNT = 10_000

_STAGE = {
    pb.MIG_STAGE_GPU_DISCOVERED: MigStage.GPU_DISCOVERED,
    pb.MIG_STAGE_MIG_ENABLED: MigStage.MIG_ENABLED,
    pb.MIG_STAGE_PARTITION_CREATED: MigStage.PARTITION_CREATED,
    pb.MIG_STAGE_AVAILABLE: MigStage.AVAILABLE,
    pb.MIG_STAGE_ALLOCATED: MigStage.ALLOCATED,
    pb.MIG_STAGE_IN_USE: MigStage.IN_USE,
    pb.MIG_STAGE_PARTITION_DESTROYED: MigStage.PARTITION_DESTROYED,
}
_STAGE_TO_PROTO = {model: proto for proto, model in _STAGE.items()}


def cards_to_proto(cards: MigCards) -> pb.ListCardsResponse:
    return pb.ListCardsResponse(
        cards=[_card_to_proto(card) for card in cards.cards],
        waiting=[
            pb.WaitingPod(pod=pod_to_proto(one.pod), profile=one.profile, note=one.note)
            for one in cards.waiting
        ],
    )


def cards_from_proto(message: pb.ListCardsResponse) -> MigCards:
    return MigCards(
        cards=tuple(_card_from_proto(card) for card in message.cards),
        waiting=tuple(
            WaitingPod(pod_from_proto(one.pod), bounded(one.profile, "MIG profile"), shortened(one.note))
            for one in message.waiting
        ),
    )


def demand_from_proto(demand: Mapping[str, int]) -> dict[str, int]:
    """Raise InvalidRequestError for what no plan can be made for."""
    if not 1 <= len(demand) <= MAX_PROFILES:
        raise InvalidRequestError(f"a plan is for 1 to {MAX_PROFILES} profiles, not {len(demand)}")
    for profile, count in demand.items():
        if MIG_PROFILE.fullmatch(profile) is None or not 1 <= count <= MAX_COUNT:
            raise InvalidRequestError("a demand is a profile such as 1g.10gb and a number from 1 on")
    return dict(demand)


def fit_to_proto(fit: PlannedFit) -> pb.PlanFitResponse:
    return pb.PlanFitResponse(
        steps=[
            pb.FitStep(
                node_name=step.node_name,
                gpu_uuid=step.gpu_uuid,
                moves=[
                    pb.FitMove(
                        owner=move.owner,
                        placement=placement_to_proto(move.placement),
                        price_usd=move.price_usd,
                    )
                    for move in step.moves
                ],
                destroy=[placement_to_proto(place) for place in step.destroy],
                create=[placement_to_proto(place) for place in step.create],
            )
            for step in fit.steps
        ],
        there=fit.there,
        missing=fit.missing,
        fingerprint=fit.fingerprint,
        stranded=fit.stranded,
    )


def fit_from_proto(message: pb.PlanFitResponse) -> PlannedFit:
    return PlannedFit(
        steps=tuple(
            PlannedCard(
                node_name=required(step.node_name, "node name"),
                gpu_uuid=required(step.gpu_uuid, "GPU UUID"),
                moves=tuple(_move_from_proto(move) for move in step.moves),
                destroy=tuple(placement_from_proto(place) for place in step.destroy),
                create=tuple(placement_from_proto(place) for place in step.create),
            )
            for step in message.steps
        ),
        there=dict(message.there),
        missing=dict(message.missing),
        stranded=tuple(shortened(name) for name in message.stranded),
        fingerprint=bounded(message.fingerprint, "fingerprint"),
    )


def fingerprint_from_proto(message: pb.ApplyFitRequest) -> str:
    return required(message.fingerprint, "fingerprint")


def begun_to_proto(changes: Iterable[BegunChange]) -> pb.ApplyFitResponse:
    return pb.ApplyFitResponse(
        changes=[pb.BegunChange(id=one.id, node_name=one.node_name, gpu_uuid=one.gpu_uuid) for one in changes]
    )


def begun_from_proto(message: pb.ApplyFitResponse) -> tuple[BegunChange, ...]:
    return tuple(
        BegunChange(
            required(one.id, "change"),
            required(one.node_name, "node name"),
            required(one.gpu_uuid, "GPU UUID"),
        )
        for one in message.changes
    )


def _move_from_proto(message: pb.FitMove) -> PlannedMove:
    price = message.price_usd if message.HasField("price_usd") else None
    return PlannedMove(shortened(message.owner), placement_from_proto(message.placement), price)


def _card_to_proto(card: MigCard) -> pb.MigCard:
    return pb.MigCard(
        node_name=card.node_name,
        gpu_uuid=card.gpu_uuid,
        index=card.index,
        model=card.model,
        stage=_STAGE_TO_PROTO[card.stage],
        slices=[
            pb.MigSlice(
                placement=placement_to_proto(one.placement),
                slices=one.slices,
                stage=_STAGE_TO_PROTO[one.stage],
                owner=one.owner,
            )
            for one in card.slices
        ],
        memory_slices=card.memory_slices,
        note=card.note,
        sharing=sharing_mode_to_proto(card.sharing),
        tenants=[pb.GpuTenant(owner=one.owner, milli=one.milli, keeping=one.keeping) for one in card.tenants],
    )


def _card_from_proto(message: pb.MigCard) -> MigCard:
    return MigCard(
        node_name=required(message.node_name, "node name"),
        gpu_uuid=required(message.gpu_uuid, "GPU UUID"),
        index=message.index,
        model=bounded(message.model, "GPU model"),
        stage=_STAGE.get(message.stage, MigStage.GPU_DISCOVERED),
        memory_slices=message.memory_slices,
        slices=tuple(
            MigSlice(
                placement_from_proto(one.placement),
                one.slices,
                _STAGE.get(one.stage, MigStage.PARTITION_CREATED),
                shortened(one.owner),
            )
            for one in message.slices
        ),
        note=shortened(message.note),
        sharing=sharing_mode_from_proto(message.sharing),
        tenants=tuple(
            GpuTenant(shortened(one.owner), one.milli, bounded(one.keeping, "keeping"))
            for one in message.tenants
        ),
    )
