"""What a change of a layout needs from the machine."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.model.layout import GpuLayout, Sharing
from gpuloom.model.mig import MigPlacement
from services.node_agent.layout.core.admission import Usage


class StepError(GpuloomError):
    """The driver, or who else was asked, did not do it; the text is for a person."""


class LayoutDriver(Protocol):
    """Writes and reads of one GPU. All raise UnavailableError if it is not known what became of the call."""

    async def read_layout(self, gpu_uuid: str) -> GpuLayout:
        """How the GPU is cut now, asked of the driver; `sharing` is left to SharingControl."""

    async def set_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Raise StepError if the mode does not take."""

    async def create(self, gpu_uuid: str, placement: MigPlacement) -> None:
        """GPU and compute instance exactly there, whichever of them is missing. Raise StepError."""

    async def destroy(self, gpu_uuid: str, placement: MigPlacement) -> None:
        """The compute instance, then the GPU instance. Raise StepError if it is in use."""


class SharingControl(Protocol):
    async def read(self, gpu_uuid: str) -> Sharing:
        """How the GPU is shared now."""

    async def start(self, gpu_uuid: str, sharing: Sharing) -> None:
        """Raise StepError if it does not come up."""

    async def stop(self, gpu_uuid: str) -> None:
        """Back to the driver's own way. Raise StepError if that does not end."""

    async def tend(self, clients_of: Callable[[str], tuple[str, ...]]) -> int:
        """Bring back what died; how many did. `clients_of` names the pods that have a GPU."""


class JournalStore(Protocol):
    async def load(self) -> bytes | None:
        """None if there is none. Raise OSError if it can't be read."""

    async def save(self, content: bytes) -> None:
        """On the disk when this returns, whole or not at all. Raise OSError."""


class DeviceFiles(Protocol):
    async def publish(self, layouts: tuple[GpuLayout, ...]) -> None:
        """Device nodes and CDI entries for exactly these instances. Raise OSError or GpuloomError."""


class Users(Protocol):
    async def of(self, gpu_uuid: str) -> Usage:
        """Who uses this GPU now, by everything that the node knows."""


Reach = Callable[[str], Awaitable[None]]
"""Comes by a failpoint."""


async def nowhere(name: str) -> None:
    """No failpoint is set."""
