"""What the controller needs from outside."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from gpuloom.model.claims import HoldTarget
from gpuloom.model.layout import LayoutChange, LayoutRequest
from gpuloom.model.ledger import Hold
from gpuloom.model.node import PodRef
from services.mig_controller.core.intents import Intent


class Holds(Protocol):
    """Capacity that the extender gives to nobody else. All raise UnavailableError or NotReadyError."""

    async def take(
        self, name: str, target: HoldTarget, reason: str, ttl_s: int, *, allow_used: bool = False
    ) -> None:
        """The same again is no error. Raise ConflictError if it is held by somebody else, or in use.

        `allow_used`: it may be in use now, and is nobody else's once it is free.
        """

    async def renew(self, name: str, ttl_s: int) -> None:
        """Raise NotFoundError if it is over."""

    async def release(self, name: str) -> None:
        """One that is over already is no error."""

    async def list_own(self) -> tuple[str, ...]:
        """Names of the holds that this service took."""

    async def list_others(self) -> tuple[Hold, ...]:
        """What anybody else has taken out of placement."""


class Agents(Protocol):
    async def change(self, node_uid: str, request: LayoutRequest) -> LayoutChange:
        """Begin it, or say what became of it.

        Raise ConflictError if it may not begin, NotFoundError if there is no such node or GPU,
        UnavailableError if the agent can't be asked.
        """


class IntentStore(Protocol):
    async def load(self) -> tuple[Intent, ...]:
        """Raise UnavailableError if it can't be read; without it nothing may be decided."""

    async def save(self, intents: tuple[Intent, ...]) -> None:
        """Durable when it returns. Raise UnavailableError, or NotReadyError without the lease."""


class Evictor(Protocol):
    async def evict(self, pod: PodRef, why: str) -> str:
        """Ask this very pod to leave. Empty if it is asked or gone; else why not yet, to be tried again.

        Raise NotAllowedError, with the reason, if it is not to be moved at all; UnavailableError.
        """


class NodeLabels(Protocol):
    """The labels by which NVIDIA's MIG manager is asked, of nodes of mode nvidia."""

    async def read(self, node_name: str) -> tuple[str, str]:
        """(layout asked for, how the manager says it went). Raise NotFoundError, UnavailableError."""

    async def ask(self, node_name: str, node_uid: str, config: str) -> str:
        """Ask for this layout, unless the node changed meanwhile. Empty if it is asked for; else why not."""


class Prices(Protocol):
    def nano_usd_per_gpu_hour(self, node_name: str) -> int | None:
        """None if that is not known."""


Reach = Callable[[str], Awaitable[None]]
"""Comes by a failpoint."""


async def nowhere(name: str) -> None:
    """No failpoint is set."""
