"""How a GPU can be cut into MIG instances: which places are legal, which is best, and how a demand is packed.

Instances exclude each other by memory slice; how many compute slices there are follows from where profiles
may start. A set of places is an integer of bits, one bit a memory slice, so that every question is answered
by exact search: a GPU has at most twelve slices. Decides nothing about which GPU is to be cut.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuloom.model.mig import MigPlacement, MigProfile

MAX_SLICES = 12


@dataclass(frozen=True, slots=True)
class Geometry:
    """The profiles of one GPU model, by the catalogue or as its driver lists them."""

    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.memory_slices <= MAX_SLICES:
            raise ValueError(f"a GPU has 1 to {MAX_SLICES} memory slices, not {self.memory_slices}")
        names = [profile.name for profile in self.profiles]
        if len(set(names)) < len(names):
            raise ValueError(f"a profile is there twice: {', '.join(sorted(names))}")
        for profile in self.profiles:
            if any(
                start < 0 or start + profile.memory_slices > self.memory_slices for start in profile.starts
            ):
                raise ValueError(f"{profile.name} starts where it has no room")

    def profile(self, name: str) -> MigProfile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)


@dataclass(frozen=True, slots=True)
class Layout:
    """A GPU with instances on it. `placements` may be in any order; they are legal by construction."""

    geometry: Geometry
    placements: tuple[MigPlacement, ...] = ()

    def __post_init__(self) -> None:
        problem = layout_problem(self.geometry, self.placements)
        if problem:
            raise ValueError(problem)

    @property
    def taken(self) -> int:
        """The bits of the slices that are in use."""
        return sum(slices_of(self.geometry, placement) for placement in self.placements)

    def places(self, profile: MigProfile) -> tuple[MigPlacement, ...]:
        """Where one more instance of it could be now, by start."""
        if sum(placement.profile == profile.name for placement in self.placements) >= profile.max_count:
            return ()
        taken = self.taken
        return tuple(
            MigPlacement(start, profile.name)
            for start in sorted(profile.starts)
            if not taken & _bits(start, profile.memory_slices)
        )

    def best_place(self, profile: MigProfile) -> MigPlacement | None:
        """The place that leaves the most to others, None if there is no room.

        What is left is counted by memory: for every profile how many instances of it still fit. Slot 6 of an
        A100 takes only a 1g, so a 1g goes there before it breaks up a place that a 3g could use.
        """
        places = self.places(profile)
        if not places:
            return None
        return min(places, key=lambda place: (-self._left_beside(place), self._rivals(place), place.start))

    def with_instance(self, placement: MigPlacement) -> "Layout":
        """Raise ValueError if it has no room there."""
        return Layout(self.geometry, (*self.placements, placement))

    def without(self, placement: MigPlacement) -> "Layout":
        return Layout(self.geometry, tuple(other for other in self.placements if other != placement))

    def _left_beside(self, place: MigPlacement) -> int:
        taken = self.taken | slices_of(self.geometry, place)
        return sum(
            profile.memory_slices * most_instances(self.geometry, profile, taken)
            for profile in self.geometry.profiles
        )

    def _rivals(self, place: MigPlacement) -> int:
        """How many places of others would be lost."""
        bits = slices_of(self.geometry, place)
        return sum(
            bool(bits & slices_of(self.geometry, other))
            for profile in self.geometry.profiles
            for other in self.places(profile)
        )


def layout_problem(geometry: Geometry, placements: Sequence[MigPlacement]) -> str:
    """Why these instances can't be on one GPU together; empty if they can."""
    taken = 0
    for placement in placements:
        profile = geometry.profile(placement.profile)
        if profile is None:
            return f"this GPU has no profile {placement.profile}"
        if placement.start not in profile.starts:
            starts = ", ".join(map(str, sorted(profile.starts)))
            return f"{placement.profile} can't start at slice {placement.start}, only at {starts}"
        bits = _bits(placement.start, profile.memory_slices)
        if taken & bits:
            return f"{placement.profile} at slice {placement.start} overlaps another instance"
        taken |= bits
    for name, count in Counter(placement.profile for placement in placements).items():
        most = next(profile.max_count for profile in geometry.profiles if profile.name == name)
        if count > most:
            return f"{count} instances of {name}, but the GPU can hold {most}"
    return ""


def slices_of(geometry: Geometry, placement: MigPlacement) -> int:
    """The bits of its slices. Raise ValueError for a profile that the GPU lacks."""
    profile = geometry.profile(placement.profile)
    if profile is None:
        raise ValueError(f"this GPU has no profile {placement.profile}")
    return _bits(placement.start, profile.memory_slices)


def legal_layouts(geometry: Geometry) -> Iterator[tuple[MigPlacement, ...]]:
    """Every set of instances that can be on one GPU together, the empty one too, each once and by start."""
    places = sorted(
        MigPlacement(start, profile.name) for profile in geometry.profiles for start in profile.starts
    )
    yield from _extended(geometry, places, ())


def _extended(
    geometry: Geometry, places: Sequence[MigPlacement], chosen: tuple[MigPlacement, ...]
) -> Iterator[tuple[MigPlacement, ...]]:
    yield chosen
    for at, place in enumerate(places):
        longer = (*chosen, place)
        if not layout_problem(geometry, longer):
            yield from _extended(geometry, places[at + 1 :], longer)


def maximal_layouts(geometry: Geometry) -> tuple[tuple[MigPlacement, ...], ...]:
    """The legal layouts to which no instance can be added."""
    return tuple(
        layout
        for layout in legal_layouts(geometry)
        if not any(Layout(geometry, layout).places(profile) for profile in geometry.profiles)
    )


@lru_cache(maxsize=65536)
def most_instances(geometry: Geometry, profile: MigProfile, taken: int) -> int:
    """How many instances of one profile fit beside the slices that are taken."""
    count, end = 0, 0
    # Instances of one profile are equally long, so taking the earliest free start each time is optimal.
    for start in sorted(profile.starts):
        if start >= end and not taken & _bits(start, profile.memory_slices):
            count, end = count + 1, start + profile.memory_slices
    return min(count, profile.max_count)


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the instances of a demand go, and how many of each profile find no room."""

    placements: tuple[MigPlacement, ...]
    left: Mapping[str, int]


def pack(layout: Layout, demand: Mapping[str, int]) -> Packing:
    """Put as much of the demand as possible beside what is there, by memory; exact.

    Of packings that hold as much, the one with the most instances, then the one that leaves the most room for
    any profile. Profiles that the GPU lacks stay in `left`.
    """
    profiles = sorted(
        (profile for profile in layout.geometry.profiles if demand.get(profile.name, 0) > 0),
        key=lambda profile: (-profile.memory_slices, profile.name),
    )
    present = Counter(placement.profile for placement in layout.placements)
    room = tuple(min(demand[profile.name], profile.max_count - present[profile.name]) for profile in profiles)
    search = _PackingSearch(layout.geometry, tuple(profiles))
    placements = search.best(layout.taken, room)[1]
    packed = Counter(placement.profile for placement in placements)
    left = {name: count - packed[name] for name, count in demand.items() if count > packed[name]}
    return Packing(placements, left)


_Value = tuple[int, int, int]


class _PackingSearch:
    """Slice by slice: what begins there, if anything. States are few: slices taken by instances left."""

    def __init__(self, geometry: Geometry, profiles: tuple[MigProfile, ...]) -> None:
        self._geometry = geometry
        self._profiles = profiles
        self._known: dict[tuple[int, int, tuple[int, ...]], tuple[_Value, tuple[MigPlacement, ...]]] = {}

    def best(
        self, taken: int, room: tuple[int, ...], start: int = 0
    ) -> tuple[_Value, tuple[MigPlacement, ...]]:
        """The best value (slices, instances, what is left for others) and its placements."""
        key = (start, taken, room)
        if key not in self._known:
            self._known[key] = self._search(taken, room, start)
        return self._known[key]

    def _search(
        self, taken: int, room: tuple[int, ...], start: int
    ) -> tuple[_Value, tuple[MigPlacement, ...]]:
        if start >= self._geometry.memory_slices or not any(room):
            return (0, 0, self._left(taken)), ()
        best = self.best(taken, room, start + 1)
        for at, profile in enumerate(self._profiles):
            bits = _bits(start, profile.memory_slices)
            if not room[at] or start not in profile.starts or taken & bits:
                continue
            fewer = (*room[:at], room[at] - 1, *room[at + 1 :])
            (slices, count, left), rest = self.best(taken | bits, fewer, start + 1)
            value = (slices + profile.memory_slices, count + 1, left)
            if value > best[0]:
                best = value, (MigPlacement(start, profile.name), *rest)
        return best

    def _left(self, taken: int) -> int:
        return sum(
            profile.memory_slices * most_instances(self._geometry, profile, taken)
            for profile in self._geometry.profiles
        )


def _bits(start: int, slices: int) -> int:
    return ((1 << slices) - 1) << start
