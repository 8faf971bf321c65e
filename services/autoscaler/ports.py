"""What the autoscaler needs from outside, and how it may fail."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.model.policies import CloudProvider
from services.autoscaler.core.buying.offerings import OfferingKey
from services.autoscaler.core.forecasting.series import Sample
from services.autoscaler.core.lifecycle.machines import (
    CloudView,
    FailureKind,
    Instance,
    Order,
    PricedOffering,
)


class CloudError(GpuloomError):
    """A cloud refused or failed; `kind` decides what follows, the text is for people."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Cloud(Protocol):
    """One cloud account. Every call may raise CloudError; after UNKNOWN the call may have acted."""

    @property
    def provider(self) -> CloudProvider: ...

    async def observe(self) -> CloudView:
        """Everything of ours, read now. Raise CloudError rather than leave something out, but for a group
        that somebody must mend: that is told as unread."""

    async def request(self, order: Order) -> Instance | None:
        """Ask for a machine; the same order again asks for no second one.

        None: it was asked for, and shows in `observe` when there is one.
        """

    async def cancel(self, group: str, size: int) -> None:
        """Want no more than `size` machines of a group that has no more than these. No-op without groups."""

    async def terminate(self, instance: Instance) -> None:
        """End exactly this machine and want one less. One that is gone or ending is no error."""

    async def offerings(self) -> Sequence[PricedOffering]:
        """What the cloud says that it rents out, with prices; empty if it does not say."""


class History(Protocol):
    """What was measured, kept for days. Raise NotReadyError or UnavailableError if it can't be had now."""

    async def append(self, samples: Sequence[Sample]) -> None:
        """Keep them; one that is there already for its time and name is replaced."""

    async def read(self, name: str, since: datetime) -> list[Sample]:
        """In order of time."""

    async def forget(self, before: datetime) -> int:
        """How many were dropped."""


class PriceSource(Protocol):
    """Raise a GpuloomError if it can't be asked now; what was known then still counts."""

    async def prices(self, provider: CloudProvider) -> Mapping[OfferingKey, int]:
        """Nano-USD of an hour; what is absent is not known, which is not zero."""
