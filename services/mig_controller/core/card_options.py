"""What one card can hold of a demand, and which of its slices would have to go. Pure.

Thousands of cards are cut in few ways: what a way of cutting can give is looked for once, whoever has the
slices.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from gpuloom.model.mig import MigPlacement
from gpuloom.placement.mig_geometry import Geometry, legal_layouts, slices_of
from services.mig_controller.core.cards import Card, Slice

Counts = tuple[int, ...]
"""Of each profile of the demand, in its order."""


@dataclass(frozen=True, slots=True)
class Option:
    """Places that serve a part of the demand. `moved` and `gone`: slices in the way, by their number.

    `made` of the places have no slice yet.
    """

    places: tuple[MigPlacement, ...]
    moved: tuple[int, ...]
    gone: tuple[int, ...]
    made: int


Options = Mapping[Counts, Sequence[Option]]
"""By what they serve. Of each part of the demand those with the fewest moves, each set of movers once."""


class _Fate(StrEnum):
    FREE = "free"
    MOVABLE = "movable"
    FIXED = "fixed"


_Cut = tuple[tuple[MigPlacement, _Fate], ...]


class CardOptions:
    """For one demand. Owners in `fixed` can't be moved, nor is who is no pod."""

    def __init__(self, wanted: Mapping[str, int], fixed: frozenset[str]) -> None:
        self._wanted = wanted
        self._fixed = fixed
        self._known: dict[object, Options] = {}

    def of(self, card: Card) -> Options:
        if card.closed or card.place.unschedulable or not (card.cut or card.idle):
            return {}
        cut = tuple((one.placement, self._fate(one)) for one in card.slices)
        key = id(card.geometry), cut, card.pinned
        if key not in self._known:
            self._known[key] = _options(card.geometry, cut, self._wanted, keep_all=card.pinned)
        return self._known[key]

    def _fate(self, one: Slice) -> _Fate:
        if one.free:
            return _Fate.FREE
        movable = one.pod is not None and one.owner not in self._fixed
        return _Fate.MOVABLE if movable else _Fate.FIXED


def _options(geometry: Geometry, cut: _Cut, wanted: Mapping[str, int], *, keep_all: bool) -> Options:
    """`keep_all`: nothing may be changed, so only free slices serve."""
    bits = [slices_of(geometry, place) for place, _ in cut]
    unmovable = sum(each for each, (_, fate) in zip(bits, cut, strict=True) if fate is _Fate.FIXED)
    most = tuple(wanted.values())
    found: dict[Counts, dict[tuple[int, ...], Option]] = {}
    for places, taken, counts in _place_sets(geometry, tuple(wanted)):
        if taken & unmovable or any(n > m for n, m in zip(counts, most, strict=True)):
            continue
        option = _option(cut, bits, places, taken)
        if (keep_all and option.made) or (option.made and _too_many(geometry, cut, option)):
            continue
        known = found.setdefault(counts, {}).setdefault(option.moved, option)
        if _changes(option) < _changes(known):
            found[counts][option.moved] = option
    return {counts: _fewest_moves(list(options.values())) for counts, options in found.items()}


def _option(cut: _Cut, bits: Sequence[int], places: tuple[MigPlacement, ...], taken: int) -> Option:
    hit = [at for at, each in enumerate(bits) if each & taken]
    kept = {at for at in hit if cut[at][1] is _Fate.FREE and cut[at][0] in places}
    moved = tuple(at for at in hit if cut[at][1] is _Fate.MOVABLE)
    gone = tuple(at for at in hit if cut[at][1] is _Fate.FREE and at not in kept)
    return Option(places, moved, gone, len(places) - len(kept))


def _changes(option: Option) -> tuple[int, int]:
    return len(option.gone), option.made


def _fewest_moves(options: Sequence[Option]) -> Sequence[Option]:
    fewest = min(len(option.moved) for option in options)
    return sorted((o for o in options if len(o.moved) == fewest), key=lambda o: (*_changes(o), o.moved))


def _too_many(geometry: Geometry, cut: _Cut, option: Option) -> bool:
    """Whether the GPU could not hold so many of a profile: of some it has one, wherever there is room."""
    going = {*option.moved, *option.gone}
    left = {place for at, (place, _) in enumerate(cut) if at not in going} | set(option.places)
    counts = Counter(place.profile for place in left)
    return any(counts[profile.name] > profile.max_count for profile in geometry.profiles)


_PlaceSet = tuple[tuple[MigPlacement, ...], int, Counts]


@lru_cache(maxsize=256)
def _place_sets(geometry: Geometry, profiles: tuple[str, ...]) -> tuple[_PlaceSet, ...]:
    """Every legal set of instances of these profiles but the empty one, its slices, and what it serves."""
    known = tuple(profile for profile in geometry.profiles if profile.name in profiles)
    found = []
    for places in legal_layouts(Geometry(geometry.memory_slices, known)):
        count = Counter(place.profile for place in places)
        bits = sum(slices_of(geometry, place) for place in places)
        if places:
            found.append((places, bits, tuple(count[name] for name in profiles)))
    return tuple(found)
