"""Which pods would have to move so that a set of slices fits, as few as possible. Pure.

Of each card every legal way to hold some of the demand is weighed: slices that nobody has are kept or cut
anew, those of movable pods are emptied. Which card gives what is found by dynamic programming over what is
still wanted: the most memory served, then the fewest moves, then their price. That is exact up to
`_MOST_WORK`; beyond it the most promising beginnings are gone on with. Never decides to move anybody: it says
what it would take.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from operator import sub

from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.placement.mig_geometry import slices_of
from services.mig_controller.core.card_options import CardOptions, Counts, Option
from services.mig_controller.core.cards import Card, Slice
from services.mig_controller.core.plan import Options, plan
from services.mig_controller.core.wishes import Wish

_MOST_WORK = 300_000
_FEWEST_STATES = 16


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
    wanted = {profile: count for profile, count in sorted(demand.items()) if count > 0}
    offers = _offers(cards, wanted, prices or {}, fixed)
    chosen = sorted(_cheapest(wanted, offers), key=lambda way: way.card.key)
    steps = tuple(step for way in chosen if (step := way.step(prices or {})) is not None)
    there = Counter(place.profile for way in chosen for place in way.kept)
    served = there + Counter(place.profile for step in steps for place in step.create)
    return FitPlan(steps, dict(there), dict(Counter(wanted) - served))


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


_Cost = tuple[int, float, int, int, int]
"""Moves, their price, free slices that go, whole cards that are cut, instances that are made."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One card with some of the demand on it."""

    card: Card
    option: Option
    cost: _Cost

    @property
    def kept(self) -> tuple[MigPlacement, ...]:
        """Free slices that serve the demand as they are."""
        free = {one.placement for one in self.card.slices if one.free}
        return tuple(place for place in self.option.places if place in free)

    def step(self, prices: Mapping[str, float]) -> FitStep | None:
        slices = self.card.slices
        create = tuple(sorted(set(self.option.places) - set(self.kept)))
        moved = [slices[at] for at in self.option.moved]
        moves = tuple(
            Move(one.pod, one.placement, prices.get(one.owner)) for one in moved if one.pod is not None
        )
        gone = tuple(sorted(slices[at].placement for at in self.option.gone))
        destroy = gone + tuple(sorted(one.placement for one in moved))
        return FitStep(self.card, moves, destroy, create) if create else None


def _offers(
    cards: Iterable[Card], wanted: Mapping[str, int], prices: Mapping[str, float], fixed: frozenset[str]
) -> list[list[tuple[Counts, _Way]]]:
    """By card, the most promising card first: what it could give.

    No plan uses more cards than the demand has instances, so of each part of the demand only that many of the
    cheapest ways matter.
    """
    options = CardOptions(wanted, fixed)
    by_counts: dict[Counts, list[tuple[_Cost, tuple[str, int], Card, Option]]] = {}
    for card in cards:
        price_of = [prices.get(one.owner, 0.0) for one in card.slices]
        for counts, able in options.of(card).items():
            cost, option = _cheapest_of(able, price_of, whole=not card.cut)
            by_counts.setdefault(counts, []).append((cost, card.key, card, option))
    kept: dict[str, list[tuple[Counts, _Way]]] = {}
    for counts, found in sorted(by_counts.items()):
        for cost, _, card, option in nsmallest(sum(wanted.values()), found, key=lambda entry: entry[:2]):
            kept.setdefault(card.uuid, []).append((counts, _Way(card, option, cost)))
    return sorted(kept.values(), key=lambda offers: min(map(_promise, offers)))


def _cheapest_of(
    options: Sequence[Option], price_of: Sequence[float], *, whole: bool
) -> tuple[_Cost, Option]:
    """They are in order of what they cost beside the work of those who move."""
    best, lowest = options[0], sum(price_of[at] for at in options[0].moved)
    for option in options[1:]:
        price = sum(price_of[at] for at in option.moved)
        if price < lowest:
            best, lowest = option, price
    return (len(best.moved), lowest, len(best.gone), int(whole), best.made), best


def _promise(offer: tuple[Counts, _Way]) -> tuple[float, float, int, tuple[str, int]]:
    """Moves for each memory slice, then their price for each, then the most slices."""
    way = offer[1]
    slices = sum(slices_of(way.card.geometry, place).bit_count() for place in way.option.places)
    return way.cost[0] / slices, way.cost[1] / slices, -slices, way.card.key


_Chain = tuple[_Way, "_Chain"] | None
_States = dict[Counts, tuple[_Cost, _Chain]]
"""By what is still wanted: the least that it costs to come so far, and how."""


def _cheapest(wanted: Mapping[str, int], offers: Sequence[Sequence[tuple[Counts, _Way]]]) -> Iterator[_Way]:
    weights = _weights(wanted, offers)

    def unserved(left: Counts) -> int:
        return sum(count * weight for count, weight in zip(left, weights, strict=True))

    def rank(entry: tuple[Counts, tuple[_Cost, _Chain]]) -> tuple[int, _Cost, Counts]:
        return unserved(entry[0]), entry[1][0], entry[0]

    most_states = max(_FEWEST_STATES, _MOST_WORK // max(1, sum(map(len, offers))))
    states: _States = {tuple(wanted.values()): ((0, 0.0, 0, 0, 0), None)}
    for ways in offers:
        states = _with_card(states, ways)
        if len(states) > most_states:
            states = dict(sorted(states.items(), key=rank)[:most_states])
    chain = min(states.items(), key=rank)[1][1]
    while chain is not None:
        way, chain = chain
        yield way


def _with_card(states: _States, ways: Iterable[tuple[Counts, _Way]]) -> _States:
    found = dict(states)
    for left, (cost, chain) in states.items():
        for counts, way in ways:
            after = tuple(map(sub, left, counts))
            if min(after) < 0:
                continue
            total = _plus(cost, way.cost)
            known = found.get(after)
            if known is None or total < known[0]:
                found[after] = total, (way, chain)
    return found


def _plus(one: _Cost, other: _Cost) -> _Cost:
    (moves, price, gone, cut, made), more = one, other
    return moves + more[0], price + more[1], gone + more[2], cut + more[3], made + more[4]


def _weights(wanted: Mapping[str, int], offers: Iterable[Sequence[tuple[Counts, _Way]]]) -> Counts:
    """How many memory slices an instance of each profile has, at most."""
    sizes = dict.fromkeys(wanted, 1)
    for ways in offers:
        for profile in ways[0][1].card.geometry.profiles:
            if profile.name in sizes:
                sizes[profile.name] = max(sizes[profile.name], profile.memory_slices)
    return tuple(sizes.values())
