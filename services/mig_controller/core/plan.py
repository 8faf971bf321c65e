"""What is cut where, so that as many waiting pods as possible get a slice. Pure.

In this order: a slice that nobody has is left to the scheduler; room on cards that are cut already; cards
that nobody uses at all; and last, slices that nobody has had for a while are cut anew. A slice that somebody
has is never in a plan, nor is a card that is closed or that a person has divided.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuloom.model.gpu import DeviceRef, SharingMode
from gpuloom.model.mig import MigPlacement
from gpuloom.placement.mig_geometry import Geometry, Layout, most_instances, pack, slices_of
from services.mig_controller.core.cards import Card, Slice
from services.mig_controller.core.strategy import DEMAND, Strategy, filled
from services.mig_controller.core.wishes import ShareWish, Wish


@dataclass(frozen=True, slots=True)
class Options:
    """A pod waits `delay_s` before anything is cut for it; a slice is idle for `idle_ttl_s` before it goes.

    `keep_whole`: so many unused cards of the cluster stay whole. `most_changes`: at a time.
    """

    delay_s: float = 2.0
    idle_ttl_s: float = 300.0
    keep_whole: int = 0
    most_changes: int = 8
    strategy: Strategy = DEMAND


@dataclass(frozen=True, slots=True)
class Cut:
    """A change of one card. `pods` are those for whom it is made."""

    card: Card
    create: tuple[MigPlacement, ...]
    destroy: tuple[MigPlacement, ...] = ()
    pods: tuple[Wish, ...] = ()

    @property
    def enable(self) -> bool:
        return not self.card.cut


@dataclass(frozen=True, slots=True)
class Plan:
    """`unmet` says why nothing is made for a pod, by its UID."""

    cuts: tuple[Cut, ...] = ()
    unmet: Mapping[str, str] = field(default_factory=dict)


def plan(cards: Sequence[Card], wishes: Sequence[Wish], options: Options, now_s: float) -> Plan:
    """`wishes` are in the order in which they are served."""
    left, promised = _beside_free(cards, wishes, now_s - options.idle_ttl_s)
    waiting = [wish for wish in left if now_s - wish.since_s >= options.delay_s]
    search = _Search(cards, options, now_s, promised)
    for kind in (search.room, search.whole, search.recut):
        waiting = kind(waiting)
    # With as many changes as may be begun nobody knows yet what is left for those who come after.
    unmet = {} if search.full else why_not(waiting, lambda wish: _why_not(wish, cards))
    return Plan(tuple(search.cuts), unmet)


W = TypeVar("W", Wish, ShareWish)


def why_not(unserved: Iterable[W], reason_of: Callable[[W], str]) -> dict[str, str]:
    """By pod UID. Many pods ask for the same, and each reason is looked for once."""
    reasons: dict[object, str] = {}
    found = {}
    for wish in unserved:
        if wish.kind not in reasons:
            reasons[wish.kind] = reason_of(wish)
        found[wish.pod.uid] = reasons[wish.kind]
    return found


def _beside_free(
    cards: Sequence[Card], wishes: Sequence[Wish], recent_s: float
) -> tuple[list[Wish], frozenset[DeviceRef]]:
    """Those for whom there is no slice that nobody has, and the slices that others will be given.

    Each slice counts for one. One is kept for a pod that came since `recent_s`: who has waited for longer
    beside it can't use it, for a reason that is not seen here.
    """
    stock = _Stock(cards)
    left, promised = [], set()
    for wish in wishes:
        device = stock.take(wish)
        if device is None:
            left.append(wish)
        elif wish.since_s > recent_s:
            promised.add(device)
    return left, frozenset(promised)


class _Stock:
    """Slices that nobody has, each to be taken once. All pods of a kind look at each of them once."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self._free: dict[str, list[tuple[Card, Slice]]] = {}
        self._held: dict[str, list[tuple[Card, Slice]]] = {}
        for card in cards:
            for one in card.slices if not card.closed else ():
                if one.free or one.hold is not None:
                    kept = self._free if one.free else self._held
                    kept.setdefault(one.placement.profile, []).append((card, one))
        self._next: dict[object, int] = {}
        self._taken: set[DeviceRef] = set()

    def take(self, wish: Wish) -> DeviceRef | None:
        for card, one in self._held.get(wish.profile, ()):
            device = DeviceRef(card.uuid, one.placement)
            if device not in self._taken and one.is_free_for(wish.pod, wish.gang) and wish.takes(card):
                self._taken.add(device)
                return device
        free, at = self._free.get(wish.profile, []), self._next.get(wish.kind, 0)
        while at < len(free):
            card, one = free[at]
            at += 1
            device = DeviceRef(card.uuid, one.placement)
            if device not in self._taken and wish.takes(card):
                self._taken.add(device)
                self._next[wish.kind] = at
                return device
        self._next[wish.kind] = at
        return None


@dataclass(slots=True)
class _Alike:
    """Cards with which the same can be done, by node and index."""

    layout: Layout
    cards: list[Card]


class _Search:
    """Goes over the cards kind by kind; a card is changed at most once."""

    def __init__(
        self, cards: Sequence[Card], options: Options, now_s: float, promised: frozenset[DeviceRef]
    ) -> None:
        self._options = options
        self._promised = promised
        self._now_s = now_s
        self._cards = [card for card in cards if not card.closed and not card.pinned]
        self._used: set[str] = set()
        self._existing = Counter(
            profile.compute_slices
            for card in cards
            for one in card.slices
            if (profile := card.geometry.profile(one.placement.profile)) is not None
        )
        self.cuts: list[Cut] = []

    @property
    def full(self) -> bool:
        """As many changes as may be begun at a time."""
        return len(self.cuts) >= self._options.most_changes

    def room(self, waiting: list[Wish]) -> list[Wish]:
        """Room on cards that are cut already."""
        return self._serve(waiting, [card for card in self._cards if card.cut], lambda card: card.layout)

    def whole(self, waiting: list[Wish]) -> list[Wish]:
        """Cards that nobody uses, and that are not kept whole."""
        idle = [c for c in self._cards if not c.cut and c.idle and c.sharing is SharingMode.NONE]
        # Node after node, so that nodes full of whole cards stay so for long.
        idle.sort(key=lambda card: card.key)
        usable = idle[: max(0, len(idle) - self._options.keep_whole)]
        return self._serve(waiting, usable, lambda card: Layout(card.geometry))

    def recut(self, waiting: list[Wish]) -> list[Wish]:
        """Cards with slices that nobody has had for long; only slices in the way go."""
        cards = [card for card in self._cards if card.cut and self._expendable(card)]
        return self._serve(waiting, cards, self._kept)

    def _kept(self, card: Card) -> Layout:
        gone = self._expendable(card)
        return Layout(card.geometry, tuple(p for one in card.slices if (p := one.placement) not in gone))

    def _expendable(self, card: Card) -> frozenset[MigPlacement]:
        """Slices that nobody has had for long, and that nobody is about to be given."""
        idle_since_s = self._now_s - self._options.idle_ttl_s
        return frozenset(
            one.placement
            for one in card.slices
            if one.free and one.idle_since_s is not None and one.idle_since_s <= idle_since_s
            if DeviceRef(card.uuid, one.placement) not in self._promised
        )

    def _serve(
        self, waiting: list[Wish], cards: list[Card], layout_of: Callable[[Card], Layout]
    ) -> list[Wish]:
        """Again and again the card that serves the most, until none serves anybody."""
        alike = self._alike(waiting, cards, layout_of) if waiting and not self.full else []
        while waiting and not self.full:
            options = [
                (found, kind)
                for kind in alike
                if kind.cards and (found := _best(kind.cards[0], kind.layout, waiting)) is not None
            ]
            if not options:
                break
            best, kind = min(options, key=lambda option: _preference(option[0]))
            kind.cards.pop(0)
            self._take(best)
            served = {wish.pod.uid for wish in best.pods}
            waiting = [wish for wish in waiting if wish.pod.uid not in served]
        return waiting

    def _alike(
        self, waiting: list[Wish], cards: list[Card], layout_of: Callable[[Card], Layout]
    ) -> list[_Alike]:
        """Thousands of cards are of few kinds: one of each kind is weighed, not each card."""
        of_wish = {wish.kind: wish for wish in waiting}
        takers: dict[tuple[str, str, str], tuple[bool, ...]] = {}
        found: dict[object, _Alike] = {}
        for card in cards:
            if card.uuid in self._used:
                continue
            layout = layout_of(card)
            where = card.node_name, card.model, card.architecture
            if where not in takers:
                takers[where] = tuple(wish.takes(card) for wish in of_wish.values())
            places = frozenset(one.placement for one in card.slices)
            key = id(card.geometry), frozenset(layout.placements), places, takers[where]
            found.setdefault(key, _Alike(layout, [])).cards.append(card)
        for kind in found.values():
            kind.cards.sort(key=lambda card: card.key)
        return list(found.values())

    def _take(self, cut: Cut) -> None:
        self._used.add(cut.card.uuid)
        if cut.enable:
            layout = Layout(cut.card.geometry, cut.create)
            extra = filled(layout, self._options.strategy, self._existing)
            cut = Cut(cut.card, cut.create + extra, cut.destroy, cut.pods)
        for place in cut.create:
            profile = cut.card.geometry.profile(place.profile)
            self._existing[0 if profile is None else profile.compute_slices] += 1
        self.cuts.append(cut)


def _best(card: Card, layout: Layout, waiting: Iterable[Wish]) -> Cut | None:
    """What this card can do for those who wait; None if nothing."""
    takers: dict[str, list[Wish]] = {}
    for wish in waiting:
        if wish.takes(card):
            takers.setdefault(wish.profile, []).append(wish)
    places = pack(layout, {profile: len(wishes) for profile, wishes in takers.items()}).placements
    if not places:
        return None
    pods = tuple(takers[place.profile].pop(0) for place in places)
    bits = sum(slices_of(card.geometry, place) for place in places)
    gone = tuple(
        one.placement
        for one in card.slices
        if one.placement not in layout.placements and bits & slices_of(card.geometry, one.placement)
    )
    kept = set(places) & {one.placement for one in card.slices}
    create = tuple(sorted(set(places) - kept))
    return Cut(card, create, tuple(p for p in gone if p not in kept), pods) if create else None


def _preference(cut: Cut) -> tuple[int, int, int, tuple[str, int]]:
    """The most memory served, then the fewest slices that go, then the card that can do least else.

    What a card can do is counted by memory: for every profile how many instances of it still fit.
    """
    geometry = cut.card.geometry
    served = sum(slices_of(geometry, place).bit_count() for place in cut.create)
    going = sum(slices_of(geometry, place) for place in cut.destroy)
    before = cut.card.layout.taken & ~going
    after = before | sum(slices_of(geometry, place) for place in cut.create)
    return -served, len(cut.destroy), _room(geometry, before) - _room(geometry, after), cut.card.key


def _room(geometry: Geometry, taken: int) -> int:
    return sum(p.memory_slices * most_instances(geometry, p, taken) for p in geometry.profiles)


def _why_not(wish: Wish, cards: Sequence[Card]) -> str:
    able = [card for card in cards if wish.takes(card) and card.geometry.profile(wish.profile) is not None]
    if not able and wish.milli:
        # Another part of the GPUs that are here: as many slices of one name need not be as large.
        others = {card.milli_of(wish.profile) for card in cards if replace(wish, milli=0).takes(card)} - {0}
        if others:
            told = " or ".join(map(str, sorted(others)))
            return f"{wish.profile} is {told} thousandths of the GPUs here, not {wish.milli}: ask for that"
    if not able and any(card.geometry.profile(wish.profile) is not None for card in cards):
        return f"no GPU of a model and on a node that it asks for can be cut into {wish.profile}"
    if not able:
        return f"no GPU of a gpuloom node can be cut into {wish.profile}"
    closed = Counter(card.closed for card in able if card.closed)
    if len(able) == sum(closed.values()):
        return f"no GPU for {wish.profile} can be changed now: {closed.most_common(1)[0][0]}"
    return f"no room for {wish.profile}: {len(able)} GPUs could have it, and all of it is in use"
