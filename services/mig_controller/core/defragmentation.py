"""Which pods would have to move so that a set of slices fits, as few as possible. Pure.

Exact on each card: every subset of its movable slices is considered, at most 2^7. Over cards it takes the
cheapest step again and again: the card that gives the most of what is missing for the least that has to move.
Never decides to move anybody: it says what it would take.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.placement.mig_geometry import Layout, pack, slices_of
from services.mig_controller.core.cards import Card, Slice
from services.mig_controller.core.plan import Options, plan
from services.mig_controller.core.wishes import Wish


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that has to leave its slice. `price_usd`: of work that is lost, None if that is not known."""

    pod: PodRef
    placement: MigPlacement
    price_usd: float | None = None

    @property
    def owner(self) -> str:
        return str(self.pod)


@dataclass(frozen=True, slots=True)
class FitStep:
    """What is done to one card: who moves, which free slices go, what is made."""

    card: Card
    moves: tuple[Move, ...]
    destroy: tuple[MigPlacement, ...]
    create: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True)
class FitPlan:
    """`there` slices are free already. `missing` is what does not fit, whatever moves.

    `stranded` are pods that would move and for which there is no place anywhere now.
    """

    steps: tuple[FitStep, ...] = ()
    there: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    stranded: tuple[str, ...] = ()

    @property
    def moves(self) -> tuple[Move, ...]:
        return tuple(move for step in self.steps for move in step.moves)

    @property
    def fingerprint(self) -> str:
        """The same for the same changes and moves: whoever applies a plan says by it which one was seen."""
        told = [
            (step.card.uuid, step.destroy, step.create, [(m.pod.uid, m.placement) for m in step.moves])
            for step in self.steps
        ]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def plan_fit(
    cards: Sequence[Card],
    demand: Mapping[str, int],
    prices: Mapping[str, float] | None = None,
    fixed: frozenset[str] = frozenset(),
) -> FitPlan:
    """`prices` by owner; owners in `fixed` can't be moved, nor is who is no pod."""
    left = Counter({profile: count for profile, count in demand.items() if count > 0})
    there = _there(cards, left)
    left -= there
    usable = [card for card in cards if not card.closed and not card.pinned]
    search = _Fit(prices or {}, fixed)
    steps: list[FitStep] = []
    while left:
        options = [step for card in usable if (step := search.best(card, left)) is not None]
        if not options:
            break
        best = min(options, key=search.preference)
        steps.append(best)
        usable = [card for card in usable if card.uuid != best.card.uuid]
        left -= Counter(place.profile for place in best.create)
    return FitPlan(tuple(steps), dict(there), dict(left))


def with_stranded(found: FitPlan, cards: Sequence[Card], wishes: Mapping[str, Wish]) -> FitPlan:
    """Say for whom there would be no place. `wishes` by pod UID: what those who move will wait for."""
    by_uuid = {step.card.uuid: step for step in found.steps}
    after = [_after(card, by_uuid.get(card.uuid)) for card in cards]
    moved = [wishes[move.pod.uid] for move in found.moves if move.pod.uid in wishes]
    unmet = plan(after, moved, Options(delay_s=0.0, most_changes=len(cards)), now_s=0.0).unmet
    names = sorted(str(move.pod) for move in found.moves if move.pod.uid in unmet)
    return replace(found, stranded=tuple(names))


def _after(card: Card, step: FitStep | None) -> Card:
    """What is made for the demand is nobody else's, and nothing idle is cut anew for those who move."""
    if step is None:
        return replace(card, slices=tuple(replace(one, idle_since_s=None) for one in card.slices))
    kept = tuple(one for one in card.slices if one.placement not in step.destroy)
    made = tuple(Slice(place, "the demand") for place in step.create)
    return replace(card, cut=True, slices=kept + made)


def _there(cards: Sequence[Card], wanted: Counter[str]) -> Counter[str]:
    free = Counter(
        one.placement.profile for card in cards if not card.closed for one in card.slices if one.free
    )
    return wanted & free


class _Fit:
    def __init__(self, prices: Mapping[str, float], fixed: frozenset[str]) -> None:
        self._prices = prices
        self._fixed = fixed

    def best(self, card: Card, left: Counter[str]) -> FitStep | None:
        """The cheapest way to serve something of what is left on this card."""
        if not card.cut and not card.idle:
            return None
        movable = [one for one in card.slices if one.pod is not None and one.owner not in self._fixed]
        found = [
            step
            for count in range(len(movable) + 1)
            for moved in combinations(movable, count)
            if (step := self._step(card, moved, left)) is not None
        ]
        return min(found, key=self.preference, default=None)

    def preference(self, step: FitStep) -> tuple[float, float, int, tuple[str, int]]:
        """Moves for each memory slice served, then their price for each, then the most served."""
        served = sum(slices_of(step.card.geometry, place).bit_count() for place in step.create)
        price = sum(move.price_usd or 0.0 for move in step.moves)
        return len(step.moves) / served, price / served, -served, step.card.key

    def _step(self, card: Card, moved: Sequence[Slice], left: Counter[str]) -> FitStep | None:
        going = {one.placement for one in moved}
        wanted_free = {one.placement for one in card.slices if one.free and left[one.placement.profile] == 0}
        kept = tuple(
            one.placement
            for one in card.slices
            if one.placement not in going and (not one.free or one.placement not in wanted_free)
        )
        places = pack(Layout(card.geometry, kept), left).placements
        bits = sum(slices_of(card.geometry, place) for place in places)
        needed = [one for one in moved if bits & slices_of(card.geometry, one.placement)]
        if not places or len(needed) < len(moved):
            return None
        gone = tuple(sorted(place for place in wanted_free if bits & slices_of(card.geometry, place)))
        moves = tuple(
            Move(one.pod, one.placement, self._prices.get(one.owner)) for one in moved if one.pod is not None
        )
        return FitStep(card, moves, gone + tuple(sorted(going)), tuple(sorted(places)))
