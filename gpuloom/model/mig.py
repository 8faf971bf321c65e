"""MIG instances and profiles."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class MigPlacement:
    """With its GPU's UUID, the identity of an instance; a MIG UUID is not, it changes on re-creation."""

    start: int
    profile: str


@dataclass(frozen=True, slots=True)
class MigInstance:
    """An instance that exists on a GPU. `fault`: why it alone must not be given out; empty if nothing is.

    `changing`: what is being done to it, so that it must not be given out meanwhile; empty if nothing is.
    """

    placement: MigPlacement
    slices: int
    memory_mib: int
    uuid: str = ""
    fault: str = ""
    changing: str = ""

    @property
    def end(self) -> int:
        return self.placement.start + self.slices


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A way to cut a GPU model: where instances of it may start and what they get."""

    name: str
    compute_slices: int
    memory_slices: int
    memory_mib: int
    starts: tuple[int, ...]
    max_count: int
