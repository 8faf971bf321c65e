"""The read model: what every agent said last, joined to the nodes of Kubernetes, and whether to believe it.

Pure: events and the time go in, changed facts come out. It never guesses: whatever does not agree makes its
node untrusted with a reason, and the reason goes when the disagreement goes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as Kubernetes shows it. `mode` is its label, UNKNOWN if it has none."""

    name: str
    uid: str
    mode: NodeMode = NodeMode.UNKNOWN
    offers_nvidia: bool = False
    offers_gpuloom: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reader of the version before must learn."""

    facts: tuple[NodeFacts, ...] = ()
    removed_node_uids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.facts or self.removed_node_uids)


@dataclass(slots=True)
class _Agent:
    """When the agent of a node was expected and heard, by our own monotonic clock."""

    expected_since_s: float
    state: NodeState | None = None
    heard_s: float | None = None


@dataclass(slots=True)
class _Record:
    node: ClusterNode | None = None
    agent: _Agent | None = None
    published: NodeFacts | None = field(default=None)


class ClusterModel:
    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._records: dict[str, _Record] = {}
        self._removed: list[str] = []
        self._touched: set[str] = set()

    def observe_node(self, node: ClusterNode) -> None:
        record = self._record(node.name)
        if record.node is not None and record.node.uid != node.uid:
            self._withdraw(record)
        record.node = node

    def forget_node(self, name: str) -> None:
        record = self._record(name)
        self._withdraw(record)
        record.node = None
        self._drop_if_empty(name, record)

    def expect_agent(self, name: str, now_s: float) -> None:
        record = self._record(name)
        if record.agent is None:
            record.agent = _Agent(expected_since_s=now_s)

    def forget_agent(self, name: str) -> None:
        record = self._record(name)
        record.agent = None
        self._drop_if_empty(name, record)

    def hear(self, name: str, now_s: float, state: NodeState | None = None) -> None:
        """The agent of this node spoke; `state` None if it only said that nothing changed.

        An agent that is not expected is not heard: it may speak once more after it was forgotten.
        """
        record = self._records.get(name)
        if record is not None and record.agent is not None:
            record.agent.heard_s = now_s
            record.agent.state = state or record.agent.state
            self._touched.add(name)

    def changes(self, now_s: float) -> Changes:
        """Publish what changed since the last call, looking only at what was touched."""
        facts = []
        for name in sorted(self._touched):
            record = self._records.get(name)
            if record is None:
                continue
            current = _facts(record, now_s, self._ttl_s)
            if current is None:
                self._withdraw(record)
            elif current != record.published:
                record.published = current
                facts.append(current)
        self._touched.clear()
        removed, self._removed = tuple(self._removed), []
        return Changes(tuple(facts), removed)

    def check_silence(self, now_s: float) -> None:
        """Look again at every agent: silence is not an event."""
        for name, record in self._records.items():
            agent = record.agent
            if agent is not None and _is_silent(agent, now_s, self._ttl_s) != _said_silent(record):
                self._touched.add(name)

    def facts(self) -> Iterator[NodeFacts]:
        """Everything published, by node name."""
        for name in sorted(self._records):
            published = self._records[name].published
            if published is not None:
                yield published

    def unsynced_reason(self, now_s: float) -> str:
        """Why this replica must not serve yet: some agent was neither heard nor given up on."""
        agents = self._agents()
        waiting = sum(
            agent.heard_s is None and now_s - agent.expected_since_s < self._ttl_s for agent in agents
        )
        return f"{waiting} of {len(agents)} agents not heard yet" if waiting else ""

    def agent_counts(self, now_s: float) -> tuple[int, int]:
        """Agents heard within the TTL, and agents expected."""
        agents = self._agents()
        return sum(not _is_silent(agent, now_s, self._ttl_s) for agent in agents), len(agents)

    def _agents(self) -> list[_Agent]:
        return [record.agent for record in self._records.values() if record.agent is not None]

    def _record(self, name: str) -> _Record:
        self._touched.add(name)
        return self._records.setdefault(name, _Record())

    def _withdraw(self, record: _Record) -> None:
        if record.published is not None:
            self._removed.append(record.published.state.node_uid)
            record.published = None

    def _drop_if_empty(self, name: str, record: _Record) -> None:
        if record.node is None and record.agent is None:
            del self._records[name]


SILENT = "the node agent is silent"
NOT_HEARD = "the node agent has not reported yet"


def _facts(record: _Record, now_s: float, ttl_s: float) -> NodeFacts | None:
    """None for what is no GPU node as far as anybody knows, or not (or no longer) in Kubernetes."""
    node, agent = record.node, record.agent
    if node is None:
        return None
    state = agent.state if agent is not None else None
    if state is None:
        if agent is None and not (node.offers_nvidia or node.offers_gpuloom):
            return None
        empty = NodeState(node.name, node.uid, node.mode, Delivery.UNKNOWN)
        return NodeFacts(empty, (NOT_HEARD,))
    reasons = tuple(_untrusted_reasons(node, state, agent is None or _is_silent(agent, now_s, ttl_s)))
    return NodeFacts(_keyed_by(node, state), reasons)


def _untrusted_reasons(node: ClusterNode, state: NodeState, silent: bool) -> Iterator[str]:
    if silent:
        yield SILENT
    if not state.node_uid:
        yield "the node agent does not know its node's UID yet"
    elif state.node_uid != node.uid:
        yield "the node agent reports for another node of the same name"
    if state.mode is NodeMode.UNKNOWN:
        yield "the node agent reports no mode"
    elif node.mode is not NodeMode.UNKNOWN and node.mode is not state.mode:
        yield f"the node is labelled mode {node.mode} but its agent works in mode {state.mode}"
    if node.offers_nvidia and node.offers_gpuloom:
        yield "the node offers both nvidia.com and gpuloom.dev GPUs: two authorities could give one card"
    if state.holders_unknown_reason:
        yield f"who holds the devices is not known: {state.holders_unknown_reason}"


def _keyed_by(node: ClusterNode, state: NodeState) -> NodeState:
    """Facts are keyed by the UID that Kubernetes gives; a disagreement is a reason, not another key."""
    if state.node_uid == node.uid and state.node_name == node.name:
        return state
    return NodeState(
        node_name=node.name,
        node_uid=node.uid,
        mode=state.mode,
        delivery=state.delivery,
        gpus=state.gpus,
        topology=state.topology,
        holders=state.holders,
        holders_unknown_reason=state.holders_unknown_reason,
        usage=state.usage,
    )


def _is_silent(agent: _Agent, now_s: float, ttl_s: float) -> bool:
    return agent.heard_s is None or now_s - agent.heard_s > ttl_s


def _said_silent(record: _Record) -> bool:
    return record.published is not None and bool(
        {SILENT, NOT_HEARD} & set(record.published.untrusted_reasons)
    )
