"""In which state a card and its slices are, in the words that users know. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuloom.model.sharing import DividedGpu, InstanceState, MigStage
from services.mig_controller.core.cards import Card, Slice


def divided(card: Card, destroying: frozenset[object] = frozenset()) -> DividedGpu:
    """`destroying` are placements that are about to go."""
    return DividedGpu(
        uuid=card.uuid,
        stage=MigStage.MIG_ENABLED if card.cut else MigStage.GPU_DISCOVERED,
        instances=tuple(
            InstanceState(one.placement.profile, one.placement.start, stage_of(one, destroying))
            for one in sorted(card.slices, key=lambda one: one.placement)
        ),
    )


def stage_of(one: Slice, destroying: frozenset[object] = frozenset()) -> MigStage:
    if one.placement in destroying:
        return MigStage.PARTITION_DESTROYED
    if one.running:
        return MigStage.IN_USE
    if one.owner:
        return MigStage.ALLOCATED
    return MigStage.PARTITION_CREATED if one.problem else MigStage.AVAILABLE


def stage_counts(cards: Iterable[Card], destroying: Mapping[str, frozenset[object]]) -> Counter[MigStage]:
    """How many instances are in each state; cards that are not cut count once as discovered.

    `destroying`: by GPU, what is about to go.
    """
    counts: Counter[MigStage] = Counter()
    for card in cards:
        counts[MigStage.MIG_ENABLED if card.cut else MigStage.GPU_DISCOVERED] += 1
        going = destroying.get(card.uuid, frozenset())
        counts.update(stage_of(one, going) for one in card.slices)
    return counts
