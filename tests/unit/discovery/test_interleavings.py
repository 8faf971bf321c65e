"""Any order of what agents, pods and nodes say ends in the facts of a fresh start on how things stand."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.gpu import GpuUsage
from gpuloom.model.node import HolderSource, NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts
from services.discovery.core.cluster import Changes, ClusterModel, ClusterNode
from services.discovery.core.findings import Cause, Finding
from services.discovery.core.pods import Asked, NodePod
from tests.effort import examples
from tests.unit.discovery.builders import (
    GRACE_S,
    TTL_S,
    a_foreign_process,
    a_gpu,
    a_gpuloom_node,
    a_node,
    a_pod,
    a_state,
    an_allocation,
    held,
    share,
)

MODES = {"a": NodeMode.GPULOOM, "b": NodeMode.NVIDIA}
NAMES = st.sampled_from(sorted(MODES))
PODS = ["p1", "p2", "p3"]
LETTERS = st.sampled_from(["a", "a", "b", "z"])
GPUS = (a_gpu("a"), a_gpu("b", 1))


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """What goes wrong is rare enough that something can go right."""
    return st.sampled_from([usual] * (4 * len(others)) + list(others))


def a_good_node(name: str) -> ClusterNode:
    build = a_gpuloom_node if MODES[name] is NodeMode.GPULOOM else a_node
    return build(name)


def a_good_report(name: str) -> NodeState:
    return a_state(name, mode=MODES[name], gpus=GPUS)


@st.composite
def nodes(draw: st.DrawFn) -> ClusterNode:
    good = a_good_node(draw(NAMES))
    return replace(
        good,
        uid=good.uid + draw(rarely("", "-2")),
        mode=draw(st.sampled_from(NodeMode)),
        offers_nvidia=draw(rarely(good.offers_nvidia, not good.offers_nvidia)),
        offers_gpuloom=draw(rarely(good.offers_gpuloom, not good.offers_gpuloom)),
    )


@st.composite
def pods(draw: st.DrawFn) -> NodePod:
    name, node = draw(st.sampled_from(PODS)), draw(NAMES)
    devices = draw(st.lists(st.builds(share, LETTERS, st.sampled_from([400, 1000])), max_size=2))
    allocation = an_allocation(
        draw(rarely(name, "p1")),
        *devices,
        node=node + draw(rarely("", "-2")),
        advisory=draw(rarely(node == "b", node == "a")),
    )
    return a_pod(
        name,
        node=node,
        terminal=draw(rarely(False, True)),
        allocation=allocation if devices else None,
        problem=draw(rarely("", "the allocation is not JSON")),
        asked=draw(st.sampled_from([Asked(), Asked(1, 1), Asked(1, 2), Asked(2, 2), None])),
    )


HOLDERS = st.builds(
    held, st.sampled_from([*PODS, *PODS, "unseen"]), LETTERS, source=st.sampled_from(HolderSource)
) | st.builds(a_foreign_process, LETTERS, st.integers(1, 3))


@st.composite
def reports(draw: st.DrawFn) -> NodeState:
    good = a_good_report(draw(NAMES))
    return replace(
        good,
        node_uid=draw(rarely(good.node_uid, "", f"{good.node_uid}-2")),
        mode=draw(rarely(good.mode, *NodeMode)),
        holders=tuple(draw(st.lists(HOLDERS, max_size=3))),
        holders_unknown_reason=draw(rarely("", "the kubelet does not answer")),
        usage=(GpuUsage("GPU-a", draw(st.sampled_from([0.0, 0.5]))),),
    )


@dataclass
class Agent:
    expected_s: float
    state: NodeState | None = None
    heard_s: float | None = None


@dataclass
class Truth:
    """What was last said of everything, and a model that heard all of it as it came."""

    model: ClusterModel = field(default_factory=lambda: ClusterModel(TTL_S, GRACE_S))
    now_s: float = 0.0
    nodes: dict[str, ClusterNode] = field(default_factory=dict)
    pods: dict[str, NodePod] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    left: dict[str, Agent] = field(default_factory=dict)
    reader: dict[str, NodeFacts] = field(default_factory=dict)
    distrust: set[tuple[str, Finding]] = field(default_factory=set)

    def observe(self, node: ClusterNode) -> None:
        self.nodes[node.name] = node
        self.model.observe_node(node)

    def forget_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.model.forget_node(name)

    def bind(self, pod: NodePod) -> None:
        self.pods[pod.ref.uid] = pod
        self.model.observe_pod(pod)

    def delete(self, name: str) -> None:
        self.pods.pop(f"uid-{name}", None)
        self.model.forget_pod(f"uid-{name}")

    def expect(self, name: str) -> None:
        if name not in self.agents:
            self.agents[name] = self._still_known(name) or Agent(self.now_s)
        self.model.expect_agent(name, self.now_s)

    def forget_agent(self, name: str) -> None:
        agent = self.agents.pop(name, None)
        if agent is not None:
            self.left[name] = agent
        self.model.forget_agent(name)

    def report(self, state: NodeState) -> None:
        self._hear(state.node_name, state)

    def beat(self, name: str) -> None:
        self._hear(name, None)

    def wait(self, delay_s: float) -> None:
        """Time that the service sees pass, for it looks several times a second."""
        self.now_s += delay_s
        self.model.check_silence(self.now_s)

    def publish(self) -> None:
        changes = self.model.changes(self.now_s)
        apply(self.reader, changes)
        for change in changes.distrust:
            entry = change.node_uid, change.finding
            assert (entry in self.distrust) != change.appeared
            self.distrust ^= {entry}

    def settle(self) -> None:
        """Let every grace and every TTL pass, while agents that were heard lately go on to speak."""
        alive = [name for name, agent in self.agents.items() if self._is_heard(agent)]
        for _ in range(int(2 * GRACE_S)):
            for name in alive:
                self.beat(name)
            self.wait(1.0)
            self.publish()

    def told_anew(self) -> "Truth":
        """A start on nothing but how things stand now."""
        fresh = Truth(now_s=self.now_s)
        for node in self.nodes.values():
            fresh.observe(node)
        for pod in self.pods.values():
            fresh.bind(pod)
        for name, agent in self.agents.items():
            fresh.model.expect_agent(name, agent.expected_s)
            fresh.agents[name] = agent
            if agent.heard_s is not None:
                fresh.model.hear(name, agent.heard_s, agent.state)
        fresh.wait(0.0)
        fresh.settle()
        return fresh

    def _is_heard(self, agent: Agent) -> bool:
        return agent.heard_s is not None and self.now_s - agent.heard_s <= TTL_S

    def _still_known(self, name: str) -> Agent | None:
        agent = self.left.pop(name, None)
        return agent if agent is not None and self._is_heard(agent) else None

    def _hear(self, name: str, state: NodeState | None) -> None:
        if name in self.agents:
            self.agents[name].heard_s = self.now_s
            self.agents[name].state = state or self.agents[name].state
        self.model.hear(name, self.now_s, state)


STEPS: st.SearchStrategy[tuple[Callable[..., None], Any]] = st.one_of(
    st.tuples(st.just(Truth.observe), nodes()),
    st.tuples(st.just(Truth.forget_node), NAMES),
    st.tuples(st.just(Truth.bind), pods()),
    st.tuples(st.just(Truth.bind), pods()),
    st.tuples(st.just(Truth.delete), st.sampled_from(PODS)),
    st.tuples(st.just(Truth.expect), NAMES),
    st.tuples(st.just(Truth.forget_agent), NAMES),
    st.tuples(st.just(Truth.report), reports()),
    st.tuples(st.just(Truth.report), reports()),
    st.tuples(st.just(Truth.beat), NAMES),
    st.tuples(st.just(Truth.wait), st.sampled_from([1.0, 29.0, 31.0])),
)
STORIES = st.lists(STEPS, min_size=8, max_size=30)
READY: list[tuple[Callable[..., None], Any]] = [
    step
    for name in MODES
    for step in (
        (Truth.expect, name),
        (Truth.observe, a_good_node(name)),
        (Truth.report, a_good_report(name)),
    )
]


@settings(max_examples=examples(200))
@given(STORIES, st.integers(1, 3))
def test_any_order_of_events_ends_in_the_facts_of_a_fresh_start(steps: list[Any], pace: int) -> None:
    truth = Truth()

    for number, (act, argument) in enumerate([*READY, *steps]):
        act(truth, argument)
        if number % pace == 0:
            truth.publish()
    truth.settle()

    fresh = truth.told_anew()
    assert truth.reader == by_uid(truth.model) == by_uid(fresh.model) == fresh.reader
    assert truth.distrust == fresh.distrust
    assert truth.model.distrust_counts() == fresh.model.distrust_counts() == counted(truth.distrust)


@given(STORIES)
def test_a_reader_of_every_change_has_the_model_s_facts(steps: list[Any]) -> None:
    truth = Truth()

    for act, argument in [*READY, *steps]:
        act(truth, argument)
        truth.publish()

        assert truth.reader == by_uid(truth.model)
        assert not truth.model.changes(truth.now_s)


@given(STORIES)
def test_a_node_is_untrusted_or_a_gpu_closed_exactly_while_something_is_found(steps: list[Any]) -> None:
    truth = Truth()

    for act, argument in [*READY, *steps]:
        act(truth, argument)
        truth.publish()

        doubted = {(facts.state.node_uid, "") for facts in truth.reader.values() if not facts.trusted}
        closed = {
            (facts.state.node_uid, gpu.gpu_uuid)
            for facts in truth.reader.values()
            for gpu in facts.closed_gpus
        }
        assert {(uid, finding.gpu_uuid) for uid, finding in truth.distrust} == doubted | closed


def apply(reader: dict[str, NodeFacts], changes: Changes) -> None:
    for uid in changes.removed_node_uids:
        del reader[uid]
    reader.update({facts.state.node_uid: facts for facts in changes.facts})


def by_uid(model: ClusterModel) -> dict[str, NodeFacts]:
    return {facts.state.node_uid: facts for facts in model.facts()}


def counted(distrust: set[tuple[str, Finding]]) -> dict[Cause, int]:
    return {cause: sum(finding.cause is cause for _, finding in distrust) for cause in Cause}
