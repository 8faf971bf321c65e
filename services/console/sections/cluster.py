"""Every node with its GPUs, from discovery's stream: what they are, who holds them, what they do now."""

from collections.abc import Mapping

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.errors import NotReadyError, UnavailableError
from gpuloom.model.snapshot import NodeFacts
from services.console.core.nodes import node_item, topology_item, topology_key, usage_item
from services.console.core.sight import for_everybody, without_foreign_pods
from services.console.core.state import Items, Json
from services.console.ports import Source

INTERVAL_S = 1.0
STALE_S = 20.0
NODES, USAGE, TOPOLOGIES = "nodes", "usage", "topologies"


class ClusterReader:
    """Makes items only of nodes that changed since it was asked last."""

    def __init__(self, mirror: ClusterMirror) -> None:
        self._mirror = mirror
        self._changed: dict[str, NodeFacts | None] = {}
        self._nodes: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self._topologies: dict[str, Json] = {}
        mirror.on_change(self._note)

    def _note(self, uid: str, facts: NodeFacts | None) -> None:
        self._changed[uid] = facts

    async def read(self) -> Mapping[str, Items]:
        if not self._mirror.synced:
            raise NotReadyError("discovery was not heard yet")
        changed, self._changed = self._changed, {}
        for uid, facts in changed.items():
            if facts is None:
                self._nodes.pop(uid, None)
                self._usage.pop(uid, None)
            else:
                self._take(uid, facts)
        if self._mirror.age_s() > STALE_S:
            raise UnavailableError(f"discovery has said nothing for {self._mirror.age_s():.0f} s")
        used = {item["topology"] for item in self._nodes.values()}
        self._topologies = {key: value for key, value in self._topologies.items() if key in used}
        return {NODES: self._nodes, USAGE: self._usage, TOPOLOGIES: self._topologies}

    def _take(self, uid: str, facts: NodeFacts) -> None:
        self._nodes[uid] = node_item(facts)
        self._usage[uid] = usage_item(facts)
        topology = facts.state.topology
        if topology is not None:
            key = topology_key(topology)
            self._topologies.setdefault(key, topology_item(topology))


def cluster_source(mirror: ClusterMirror) -> Source:
    rules = {NODES: without_foreign_pods, USAGE: for_everybody, TOPOLOGIES: for_everybody}
    return Source("discovery", rules, INTERVAL_S, ClusterReader(mirror).read, mirror.run)
