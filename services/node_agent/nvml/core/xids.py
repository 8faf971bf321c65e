"""The errors (XIDs) that the driver reported and nobody has taken yet. Pure.

Keeps the last of each kind for each device, so that a flood of one kind never pushes out another: an
application can raise thousands of XID 31 between two samples, and one XID 79 among them must close the GPU.
"""

from collections.abc import Container
from dataclasses import dataclass, replace

# NVIDIA numbers its errors from 1 to a few hundred. Whatever is beyond counts as one kind, which bounds what
# is kept by the number of kinds and devices.
LAST_KIND = 1023

_Kind = tuple[str, int | None, int]


@dataclass(frozen=True, slots=True)
class XidEvent:
    """`instance` is the driver's number of the MIG instance it happened on, None for the whole GPU.

    `times` is how often it happened since errors were taken last.
    """

    gpu_uuid: str
    xid: int
    instance: int | None = None
    times: int = 1


class PendingXids:
    def __init__(self) -> None:
        # In the order in which each kind happened last.
        self._last: dict[_Kind, XidEvent] = {}

    def add(self, event: XidEvent) -> None:
        kind = (event.gpu_uuid, event.instance, min(event.xid, LAST_KIND))
        before = self._last.pop(kind, None)
        self._last[kind] = event if before is None else replace(event, times=before.times + event.times)

    def take(self, known: Container[str]) -> list[XidEvent]:
        """Those of the GPUs known by now, in the order in which they happened last. Others wait."""
        taken = [event for event in self._last.values() if event.gpu_uuid in known]
        self._last = {kind: event for kind, event in self._last.items() if event.gpu_uuid not in known}
        return taken
