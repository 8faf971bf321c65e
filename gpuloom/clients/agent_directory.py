"""Where the node agents are, by node UID, as discovery tells it: for services that follow them themselves.

Decides nothing about an agent: whether it answers, and whether its node is trusted, is to be asked elsewhere.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.model.snapshot import NodeFacts
from gpuloom.runtime.parsers import Address, address

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentPlace:
    node_name: str
    address: Address


AgentHandler = Callable[[str, AgentPlace | None], None]


class AgentDirectory:
    """The agents that discovery follows. Handlers hear (node UID, place or None) for every difference.

    It lives with the mirror it is made on: what was known stays while discovery is away.
    """

    def __init__(self, mirror: ClusterMirror) -> None:
        self._places: dict[str, AgentPlace] = {}
        self._handlers: list[AgentHandler] = []
        mirror.on_change(self._observe)

    @property
    def places(self) -> Mapping[str, AgentPlace]:
        """By node UID, live."""
        return MappingProxyType(self._places)

    def on_change(self, handler: AgentHandler) -> None:
        for node_uid, place in self._places.items():
            handler(node_uid, place)
        self._handlers.append(handler)

    def _observe(self, node_uid: str, facts: NodeFacts | None) -> None:
        place = _place(facts) if facts is not None else None
        if place == self._places.get(node_uid):
            return
        if place is None:
            del self._places[node_uid]
        else:
            self._places[node_uid] = place
        for handler in self._handlers:
            handler(node_uid, place)


def _place(facts: NodeFacts) -> AgentPlace | None:
    if not facts.agent_address:
        return None
    try:
        return AgentPlace(facts.state.node_name, address(facts.agent_address))
    except ValueError as error:
        fields = {"node": facts.state.node_name, "reason": str(error)}
        _log.warning("address of an agent not understood, so it is not followed", extra=fields)
        return None
