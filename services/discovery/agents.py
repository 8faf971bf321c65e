"""Where the agents are: of which nodes one is expected, and at which address it is followed.

Found by their own pods, by the addresses of nodes with GPUs, or in a file. Never decides whether an agent
that is found is heard: that is the model's.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from gpuloom.clients.agents import parse_agents, read_agents_body
from gpuloom.errors import InvalidRequestError
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.parsers import Address

_log = logging.getLogger(__name__)


class AgentSource(StrEnum):
    PODS = "pods"
    NODES = "nodes"
    FILE = "file"


class Expectations(Protocol):
    """Who is told of which nodes an agent is expected, and where it is; the model."""

    def expect_agent(self, name: str, now_s: float) -> None: ...

    def locate_agent(self, name: str, address: str) -> None: ...

    def forget_agent(self, name: str) -> None: ...


class Following(Protocol):
    """Who follows agents."""

    def follow(self, name: str, address: Address) -> None: ...

    def forget(self, name: str) -> None: ...


class WantedAgents:
    """The agents that should be there; both the model and the followers learn of every change."""

    def __init__(self, model: Expectations, followers: Following, clock: Clock) -> None:
        self._model = model
        self._followers = followers
        self._clock = clock
        self._addresses: dict[str, Address | None] = {}

    def set_all(self, addresses: Mapping[str, Address]) -> None:
        for name in self._addresses.keys() - addresses.keys():
            self.forget(name)
        for name, address in addresses.items():
            self.set(name, address)

    def set(self, name: str, address: Address | None) -> None:
        """An address of None: it is expected, and not yet to be reached."""
        is_known = name in self._addresses
        if is_known and self._addresses[name] == address:
            return
        self._addresses[name] = address
        if not is_known:
            self._model.expect_agent(name, self._clock.monotonic())
        self._model.locate_agent(name, str(address) if address is not None else "")
        if address is not None:
            self._followers.follow(name, address)
        else:
            self._followers.forget(name)

    def forget(self, name: str) -> None:
        if name in self._addresses:
            del self._addresses[name]
            self._model.forget_agent(name)
            self._followers.forget(name)


@dataclass(frozen=True, slots=True)
class AgentPod:
    """An agent's own pod. `host` is empty while it has no address."""

    uid: str
    node_name: str
    host: str
    leaving: bool = False


class AgentPods:
    """Agents by their own pods. While one is replaced there may be two on a node, or none for a moment."""

    def __init__(self, wanted: WantedAgents, port: int) -> None:
        self._wanted = wanted
        self._port = port
        self._pods: dict[str, dict[str, AgentPod]] = defaultdict(dict)
        self._node_of: dict[str, str] = {}

    def observe(self, uid: str, pod: AgentPod | None) -> None:
        """None: this pod is no agent's, or not any more."""
        before = self._node_of.pop(uid, None)
        if before is not None:
            del self._pods[before][uid]
        if pod is not None:
            self._pods[pod.node_name][uid] = pod
            self._node_of[uid] = pod.node_name
        for name in {before, pod.node_name if pod is not None else None} - {None}:
            self._choose(str(name))

    def _choose(self, name: str) -> None:
        pods = self._pods[name]
        if not pods:
            del self._pods[name]
            self._wanted.forget(name)
            return
        best = min(pods.values(), key=lambda pod: (not pod.host, pod.leaving, pod.uid))
        self._wanted.set(name, Address(best.host, self._port) if best.host else None)


class AgentsFile:
    """Agents from a file, read again when it was replaced; a broken file keeps what was read before."""

    interval_s = 2.0

    def __init__(self, path: Path, wanted: WantedAgents, clock: Clock) -> None:
        self._path = path
        self._wanted = wanted
        self._clock = clock
        self._body = b""

    def read(self) -> None:
        """Raise InvalidRequestError if the file can't be used."""
        body = read_agents_body(self._path)
        if body != self._body:
            self._wanted.set_all(parse_agents(body, str(self._path)))
            self._body = body

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self.interval_s)
            try:
                self.read()
            except InvalidRequestError as error:
                _log.warning("agents file not used", extra={"reason": str(error)})
