"""What discovery needs from outside."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gpuloom.model.node import NodeState
from gpuloom.runtime.parsers import Address


class AgentLink(Protocol):
    def states(self) -> AbstractAsyncContextManager[AsyncIterator[NodeState | None]]:
        """The agent's state now and after every change; None when it says that nothing changed.

        Iterating raises a GpuloomError when the agent is lost or the stream has a gap.
        """


class Agents(Protocol):
    def link(self, address: Address) -> AbstractAsyncContextManager[AgentLink]:
        """A connection to the agent at this address."""
