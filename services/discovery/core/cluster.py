"""The read model: what every agent said last, joined to the nodes and pods of Kubernetes.

Pure: events and the time go in, changed facts come out. An event touches one node; whether its facts can be
believed is judged in `trust.py` when they are published. It never guesses: whatever does not agree is a
reason, and the reason goes when the disagreement goes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpuloom.model.node import Delivery, NodeState
from gpuloom.model.snapshot import NodeFacts
from services.discovery.core.alarms import Alarms
from services.discovery.core.desired import Desired, desired_of
from services.discovery.core.findings import Cause, Finding
from services.discovery.core.nodes import ClusterNode
from services.discovery.core.pods import NodePod, believed_allocations
from services.discovery.core.trust import LAG_GRACE_S, REASONS, Case, Judgement, Voice, judge

__all__ = ["NOT_HEARD", "SILENT", "Changes", "ClusterModel", "ClusterNode", "TrustChange"]

SILENT = REASONS[Cause.AGENT_SILENT]
NOT_HEARD = REASONS[Cause.AGENT_NOT_HEARD]


@dataclass(frozen=True, slots=True)
class TrustChange:
    """A finding that began or ceased to cost this node, or one GPU of it, the trust."""

    node_name: str
    node_uid: str
    finding: Finding
    appeared: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reader of the version before must learn.

    `usage_only` are the UIDs of those nodes in `facts` of which nothing but usage changed.
    """

    facts: tuple[NodeFacts, ...] = ()
    removed_node_uids: tuple[str, ...] = ()
    distrust: tuple[TrustChange, ...] = ()
    usage_only: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.facts or self.removed_node_uids)


@dataclass(slots=True)
class _Agent:
    """When the agent of a node was expected and heard, by our own monotonic clock.

    `address` is where it is followed, empty if it is not.
    `leaving`: nobody follows it any more. What it said holds as long as that of any agent that falls silent,
    because its successor mostly comes within that time.
    """

    expected_since_s: float
    state: NodeState | None = None
    heard_s: float | None = None
    silent: bool = True
    leaving: bool = False
    address: str = ""

    @property
    def voice(self) -> Voice:
        if self.heard_s is None:
            return Voice.NEVER
        return Voice.SILENT if self.silent else Voice.HEARD


@dataclass(slots=True)
class _Record:
    node: ClusterNode | None = None
    pods: dict[str, NodePod] = field(default_factory=dict)
    published: NodeFacts | None = None
    findings: tuple[Finding, ...] = ()
    since_s: Mapping[Finding, float] = field(default_factory=dict)


class ClusterModel:
    def __init__(self, ttl_s: float, lag_grace_s: float = LAG_GRACE_S) -> None:
        self._ttl_s = ttl_s
        self._lag_grace_s = lag_grace_s
        self._records: dict[str, _Record] = {}
        self._agents: dict[str, _Agent] = {}
        self._heard: set[str] = set()
        """Names of agents that are followed and were heard within their TTL."""
        self._leaving: set[str] = set()
        self._node_of_pod: dict[str, str] = {}
        self._node_names: dict[str, str] = {}
        self._silences = Alarms()
        self._graces = Alarms()
        self._touched: set[str] = set()
        self._used: set[str] = set()
        """Names of nodes of which only the usage changed."""
        self._removed: list[str] = []
        self._trust_changes: list[TrustChange] = []
        self._counts: Counter[Cause] = Counter()

    def observe_node(self, node: ClusterNode) -> None:
        record = self._record(node.name)
        if record.node == node:
            return
        if record.node is not None and record.node.uid != node.uid:
            self._withdraw(record)
            self._node_names.pop(record.node.uid, None)
        record.node = node
        self._node_names[node.uid] = node.name
        self._touched.add(node.name)

    def forget_node(self, name: str) -> None:
        record = self._records.get(name)
        if record is None or record.node is None:
            return
        self._withdraw(record)
        self._node_names.pop(record.node.uid, None)
        record.node = None
        self._drop_if_empty(name, record)

    def observe_pod(self, pod: NodePod) -> None:
        """A pod that is bound; the node may become known later."""
        uid, before = pod.ref.uid, self._node_of_pod.get(pod.ref.uid)
        if before is not None and before != pod.node_name:
            self.forget_pod(uid)
        record = self._record(pod.node_name)
        if record.pods.get(uid) != pod:
            record.pods[uid] = pod
            self._node_of_pod[uid] = pod.node_name
            self._touched.add(pod.node_name)

    def forget_pod(self, uid: str) -> None:
        name = self._node_of_pod.pop(uid, None)
        if name is not None:
            record = self._records[name]
            del record.pods[uid]
            self._touched.add(name)
            self._drop_if_empty(name, record)

    def expect_agent(self, name: str, now_s: float) -> None:
        agent = self._agents.setdefault(name, _Agent(expected_since_s=now_s))
        agent.leaving = False
        self._leaving.discard(name)
        if not agent.silent:
            self._heard.add(name)
        self._touched.add(name)

    def locate_agent(self, name: str, address: str) -> None:
        """The agent of this node is followed there from now on; empty: nowhere yet."""
        agent = self._agents.get(name)
        if agent is not None and agent.address != address:
            agent.address = address
            self._touched.add(name)

    def forget_agent(self, name: str) -> None:
        """Nobody follows it from now on; what it said last holds until its TTL is over."""
        agent = self._agents.get(name)
        if agent is None:
            return
        self._heard.discard(name)
        self.locate_agent(name, "")
        if agent.silent:
            self._drop_agent(name)
        else:
            agent.leaving = True
            self._leaving.add(name)

    def hear(self, name: str, now_s: float, state: NodeState | None = None) -> None:
        """The agent of this node spoke; `state` None if it only said that nothing changed.

        An agent that is not expected is not heard: it may speak once more after it was forgotten.
        """
        agent = self._agents.get(name)
        if agent is None or agent.leaving:
            return
        agent.heard_s = now_s
        if agent.silent:
            agent.silent = False
            self._heard.add(name)
            self._silences.set(name, now_s + self._ttl_s)
            self._touched.add(name)
        if state is None:
            return
        before, agent.state = agent.state, state
        if before is None or not _same_but_usage(before, state):
            self._touched.add(name)
        elif before.usage != state.usage:
            self._used.add(name)

    def check_silence(self, now_s: float) -> None:
        """Look again at what is due: silence is not an event, nor is the end of a grace."""
        for name in self._silences.take_due(now_s):
            agent = self._agents.get(name)
            if agent is None or agent.heard_s is None:
                continue
            if now_s - agent.heard_s <= self._ttl_s:
                self._silences.set(name, agent.heard_s + self._ttl_s)
                continue
            agent.silent = True
            self._heard.discard(name)
            self._touched.add(name)
            if agent.leaving:
                self._drop_agent(name)
        self._touched.update(self._graces.take_due(now_s))

    def changes(self, now_s: float) -> Changes:
        """Publish what changed since the last call, looking only at what was touched."""
        facts = []
        for name in sorted(self._touched):
            current = self._judged(name, now_s)
            if current is not None:
                facts.append(current)
        used = [self._with_new_usage(name) for name in sorted(self._used - self._touched)]
        usage_only = [current for current in used if current is not None]
        self._touched.clear()
        self._used.clear()
        removed, self._removed = tuple(self._removed), []
        distrust, self._trust_changes = tuple(self._trust_changes), []
        uids = frozenset(current.state.node_uid for current in usage_only)
        return Changes((*facts, *usage_only), removed, distrust, uids)

    def facts(self) -> Iterator[NodeFacts]:
        """Everything published, by node name."""
        for name in sorted(self._records):
            published = self._records[name].published
            if published is not None:
                yield published

    def distrust_counts(self) -> Mapping[Cause, int]:
        """How many nodes and GPUs are not trusted now, by cause; every cause is there."""
        return {cause: self._counts[cause] for cause in Cause}

    def standing_distrust(self) -> Iterator[TrustChange]:
        """Every finding that counts now, as if it had just appeared."""
        for name in sorted(self._records):
            record = self._records[name]
            if record.published is not None:
                for finding in record.findings:
                    yield TrustChange(name, record.published.state.node_uid, finding, appeared=True)

    def desired(self, node_uid: str) -> Desired | None:
        """What should stand on this node in Kubernetes; None, so nothing, if its agent is not heard."""
        name = self._node_names.get(node_uid, "")
        agent, record = self._agents.get(name), self._records.get(name)
        if agent is None or agent.silent or agent.state is None or record is None or record.node is None:
            return None
        return desired_of(record.node, agent.state)

    def unsynced_reason(self, now_s: float) -> str:
        """Why this replica must not serve yet: some agent was neither heard nor given up on."""
        waiting = sum(
            agent.heard_s is None and now_s - agent.expected_since_s < self._ttl_s
            for agent in self._agents.values()
        )
        return f"{waiting} of {len(self._agents)} agents not heard yet" if waiting else ""

    def agent_counts(self, now_s: float) -> tuple[int, int]:
        """Agents heard within the TTL as of the last look for silence, and agents expected."""
        return len(self._heard), len(self._agents) - len(self._leaving)

    def _judged(self, name: str, now_s: float) -> NodeFacts | None:
        """The facts to publish, if they changed."""
        record, agent = self._records.get(name), self._agents.get(name)
        self._graces.clear(name)
        if record is None:
            return None
        node = record.node
        if node is None or (agent is None and not node.has_gpus):
            # No GPU node as far as anybody knows, or not (or no longer) in Kubernetes.
            self._withdraw(record)
            return None
        case = _case(node, agent, record.pods)
        judgement = judge(case, record.since_s, now_s, self._lag_grace_s)
        record.since_s = judgement.since_s
        if judgement.due_s is not None:
            self._graces.set(name, judgement.due_s)
        self._note(record, node, judgement.findings)
        current = _facts(case, judgement, agent.address if agent is not None else "")
        if current == record.published:
            return None
        record.published = current
        return current

    def _with_new_usage(self, name: str) -> NodeFacts | None:
        """Usage is for display: it neither costs nor restores any trust."""
        record, agent = self._records.get(name), self._agents.get(name)
        if record is None or record.node is None or record.published is None:
            return None
        if agent is None or agent.state is None:
            return None
        record.published = replace(record.published, state=_keyed_by(record.node, agent.state))
        return record.published

    def _note(self, record: _Record, node: ClusterNode, findings: tuple[Finding, ...]) -> None:
        before, after = set(record.findings), set(findings)
        gone = [finding for finding in record.findings if finding not in after]
        new = [finding for finding in findings if finding not in before]
        for finding, appeared in (*((old, False) for old in gone), *((one, True) for one in new)):
            self._counts[finding.cause] += 1 if appeared else -1
            self._trust_changes.append(TrustChange(node.name, node.uid, finding, appeared))
        record.findings = findings

    def _record(self, name: str) -> _Record:
        return self._records.setdefault(name, _Record())

    def _withdraw(self, record: _Record) -> None:
        if record.published is not None:
            state = record.published.state
            self._removed.append(state.node_uid)
            self._note(record, ClusterNode(state.node_name, state.node_uid), ())
            record.published = None
        record.since_s = {}

    def _drop_agent(self, name: str) -> None:
        del self._agents[name]
        self._leaving.discard(name)
        self._silences.clear(name)
        self._touched.add(name)

    def _drop_if_empty(self, name: str, record: _Record) -> None:
        if record.node is None and not record.pods:
            del self._records[name]


def _case(node: ClusterNode, agent: _Agent | None, pods: Mapping[str, NodePod]) -> Case:
    if agent is None:
        return Case(node, pods=pods)
    return Case(node, agent.state, agent.voice, pods)


def _facts(case: Case, judgement: Judgement, agent_address: str) -> NodeFacts:
    node, state = case.node, case.state
    if state is None:
        shown = NodeState(node.name, node.uid, node.mode, Delivery.UNKNOWN)
    else:
        shown = _keyed_by(node, state)
    return NodeFacts(
        state=shown,
        untrusted_reasons=judgement.untrusted_reasons,
        closed_gpus=judgement.closed_gpus,
        place=node.place,
        allocations=believed_allocations(case.pods.values(), node.uid),
        details=judgement.details,
        agent_address=agent_address,
    )


def _keyed_by(node: ClusterNode, state: NodeState) -> NodeState:
    """Facts are keyed by the UID that Kubernetes gives; a disagreement is a reason, not another key."""
    if state.node_uid == node.uid and state.node_name == node.name:
        return state
    return replace(state, node_name=node.name, node_uid=node.uid)


def _same_but_usage(one: NodeState, other: NodeState) -> bool:
    """Compared field by field: what a delta left alone is the very same object in both."""
    return (
        one.gpus == other.gpus
        and one.holders == other.holders
        and one.presence == other.presence
        and one.topology == other.topology
        and (one.node_name, one.node_uid, one.mode, one.delivery)
        == (other.node_name, other.node_uid, other.mode, other.delivery)
        and one.holders_unknown_reason == other.holders_unknown_reason
        and (one.spot, one.driver_problem) == (other.spot, other.driver_problem)
    )
