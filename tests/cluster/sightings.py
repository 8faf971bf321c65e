"""What was seen inside running containers, and whether any card had more owners than it has room for.

Pure. Judges by sightings and by what each pod asked for, never by what the product says it gave.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuloom.model.gpu import MILLI_PER_GPU


@dataclass(frozen=True)
class Look:
    """One sample into a container: it saw these devices at some moment between the two (monotonic) times."""

    began_s: float
    ended_s: float
    devices: frozenset[str]


@dataclass
class Stay:
    """All looks into one pod. `milli` is what it asked for of each of its devices."""

    pod: str
    node: str
    milli: int
    looks: list[Look] = field(default_factory=list)

    @property
    def from_s(self) -> float:
        """From here on it surely had what it was seen with, up to `until_s`; later than that if seen once."""
        return self.looks[0].ended_s

    @property
    def until_s(self) -> float:
        return self.looks[-1].began_s

    @property
    def devices(self) -> frozenset[str]:
        return frozenset[str]().union(*(look.devices for look in self.looks))


def crowded(stays: Iterable[Stay]) -> list[str]:
    """Every card, at every moment a pod came to it, that then had owners of more than all of it."""
    by_device: dict[tuple[str, str], list[Stay]] = defaultdict(list)
    for stay in stays:
        for device in stay.devices:
            by_device[stay.node, device].append(stay)
    found = []
    for (node, device), owners in sorted(by_device.items(), key=lambda item: item[0]):
        for newcomer in owners:
            beside = [one for one in owners if one.from_s <= newcomer.from_s <= one.until_s]
            if sum(one.milli for one in beside) > MILLI_PER_GPU:
                found.append(f"{node} {device}: {', '.join(sorted(one.pod for one in beside))}")
    return found
