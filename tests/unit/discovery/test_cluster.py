from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.node import NodeMode, NodeState
from gpuloom.model.snapshot import NodeFacts
from services.discovery.cluster import NOT_HEARD, SILENT, Changes, ClusterModel, ClusterNode
from tests.unit.discovery.builders import TTL_S, a_node, a_state

NAMES = st.sampled_from(["a", "b"])
NODES = st.builds(
    lambda name, life, **changes: a_node(name, uid=f"uid-{name}{life}", **changes),
    name=NAMES,
    life=st.sampled_from(["", "-2"]),
    mode=st.sampled_from(NodeMode),
    offers_nvidia=st.booleans(),
    offers_gpuloom=st.booleans(),
)
REPORTS = st.builds(
    lambda name, life, **changes: a_state(name, node_uid=life and f"uid-{name}{life}", **changes),
    name=NAMES,
    life=st.sampled_from(["", "-1", "-2"]),
    utilization=st.sampled_from([0.0, 0.5]),
    mode=st.sampled_from(NodeMode),
    holders_unknown_reason=st.sampled_from(["", "the kubelet does not answer"]),
)


@dataclass
class Agent:
    expected_s: float
    heard_s: float | None = None
    state: NodeState | None = None


@dataclass
class Truth:
    """What was last said of every node and agent, and a model that heard all of it as it came."""

    model: ClusterModel = field(default_factory=lambda: ClusterModel(TTL_S))
    now_s: float = 0.0
    nodes: dict[str, ClusterNode] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    reader: dict[str, NodeFacts] = field(default_factory=dict)

    def observe(self, node: ClusterNode) -> None:
        self.nodes[node.name] = node
        self.model.observe_node(node)

    def forget_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.model.forget_node(name)

    def expect(self, name: str) -> None:
        self.agents.setdefault(name, Agent(self.now_s))
        self.model.expect_agent(name, self.now_s)

    def forget_agent(self, name: str) -> None:
        self.agents.pop(name, None)
        self.model.forget_agent(name)

    def report(self, state: NodeState) -> None:
        self._hear(state.node_name, state)

    def beat(self, name: str) -> None:
        self._hear(name, None)

    def wait(self, delay_s: float) -> None:
        self.now_s += delay_s

    def publish(self, *, look_for_silence: bool = True) -> None:
        if look_for_silence:
            self.model.check_silence(self.now_s)
        apply(self.reader, self.model.changes(self.now_s))

    def told_anew(self) -> ClusterModel:
        """A model that only hears how things stand now."""
        fresh = ClusterModel(TTL_S)
        for node in self.nodes.values():
            fresh.observe_node(node)
        for name, agent in self.agents.items():
            fresh.expect_agent(name, agent.expected_s)
            if agent.heard_s is not None:
                fresh.hear(name, agent.heard_s, agent.state)
        fresh.check_silence(self.now_s)
        fresh.changes(self.now_s)
        return fresh

    def _hear(self, name: str, state: NodeState | None) -> None:
        if name in self.agents:
            self.agents[name].heard_s = self.now_s
            self.agents[name].state = state or self.agents[name].state
        self.model.hear(name, self.now_s, state)


STEPS: st.SearchStrategy[tuple[Callable[..., None], Any]] = st.one_of(
    st.tuples(st.just(Truth.observe), NODES),
    st.tuples(st.just(Truth.forget_node), NAMES),
    st.tuples(st.just(Truth.expect), NAMES),
    st.tuples(st.just(Truth.forget_agent), NAMES),
    st.tuples(st.just(Truth.report), REPORTS),
    st.tuples(st.just(Truth.beat), NAMES),
    st.tuples(st.just(Truth.wait), st.sampled_from([1.0, 29.0, 31.0])),
)
PUBLICATIONS = st.booleans()


@given(st.lists(STEPS | PUBLICATIONS, max_size=30))
def test_any_order_of_events_ends_in_the_facts_of_how_things_stand(steps: list[Any]) -> None:
    truth = Truth()

    for step in steps:
        if isinstance(step, bool):
            truth.publish(look_for_silence=step)
            assert truth.reader == by_uid(truth.model)
        else:
            act, argument = step
            act(truth, argument)
    truth.publish()

    assert truth.reader == by_uid(truth.model) == by_uid(truth.told_anew())


@given(st.lists(STEPS, max_size=20))
def test_nothing_is_published_twice(steps: list[Any]) -> None:
    truth = Truth()
    for act, argument in steps:
        act(truth, argument)

    truth.publish()

    truth.model.check_silence(truth.now_s)
    assert not truth.model.changes(truth.now_s)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (a_state(node_uid=""), "does not know its node's UID"),
        (a_state(node_uid="uid-other"), "another node of the same name"),
        (a_state(mode=NodeMode.UNKNOWN), "reports no mode"),
        (a_state(mode=NodeMode.GPULOOM), "labelled mode nvidia but its agent works in mode gpuloom"),
        (a_state(holders_unknown_reason="no answer"), "who holds the devices is not known: no answer"),
    ],
)
def test_what_an_agent_says_can_cost_its_node_the_trust_until_it_says_otherwise(
    trouble: NodeState, reason: str
) -> None:
    model = a_model(a_node(), a_state())

    model.hear("n1", 1.0, trouble)
    (troubled,) = model.changes(1.0).facts
    model.hear("n1", 2.0, a_state())
    (healed,) = model.changes(2.0).facts

    assert len(troubled.untrusted_reasons) == 1
    assert reason in troubled.untrusted_reasons[0]
    assert healed == NodeFacts(a_state())


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (a_node(offers_gpuloom=True), "two authorities"),
        (a_node(mode=NodeMode.GPULOOM), "labelled mode gpuloom"),
        (a_node(uid="uid-replaced"), "another node of the same name"),
    ],
)
def test_what_kubernetes_says_can_cost_a_node_the_trust_until_it_says_otherwise(
    trouble: ClusterNode, reason: str
) -> None:
    model = a_model(a_node(), a_state())

    model.observe_node(trouble)
    (troubled,) = model.changes(1.0).facts
    model.observe_node(a_node())
    (healed,) = model.changes(1.0).facts

    assert len(troubled.untrusted_reasons) == 1
    assert reason in troubled.untrusted_reasons[0]
    assert healed.trusted


def test_a_node_without_a_mode_label_is_in_the_mode_of_its_agent() -> None:
    (facts,) = a_model(a_node(mode=NodeMode.UNKNOWN), a_state()).facts()

    assert facts.trusted


def test_silence_costs_the_trust_and_a_heartbeat_restores_it() -> None:
    model = a_model(a_node(), a_state())

    in_time = published(model, TTL_S)
    silent = published(model, TTL_S + 0.1)
    model.hear("n1", 40.0)
    heard = published(model, 40.0)

    assert in_time == ()
    assert silent == (NodeFacts(a_state(), (SILENT,)),)
    assert heard == (NodeFacts(a_state()),)


def test_a_gpu_node_whose_agent_never_spoke_is_shown_untrusted() -> None:
    model = ClusterModel(TTL_S)
    model.observe_node(a_node())
    model.expect_agent("n1", 0.0)

    (facts,) = published(model, 0.0)

    assert facts.untrusted_reasons == (NOT_HEARD,)
    assert (facts.state.node_uid, facts.state.gpus) == ("uid-n1", ())


def test_a_node_without_gpus_or_agent_is_none_of_ours() -> None:
    model = ClusterModel(TTL_S)

    model.observe_node(a_node(offers_nvidia=False))

    assert not model.changes(0.0)


def test_a_node_that_lost_its_gpus_and_its_agent_is_no_longer_offered() -> None:
    model = a_model(a_node(), a_state())

    model.observe_node(a_node(offers_nvidia=False))
    model.forget_agent("n1")

    assert model.changes(1.0) == Changes((), ("uid-n1",))
    assert not list(model.facts())


def test_a_node_whose_agent_was_forgotten_shows_no_gpus_any_more() -> None:
    model = a_model(a_node(), a_state())

    model.forget_agent("n1")

    (facts,) = model.changes(1.0).facts
    assert (facts.state.gpus, facts.untrusted_reasons) == ((), (NOT_HEARD,))


def test_an_agent_that_speaks_after_it_was_forgotten_is_not_heard() -> None:
    model = a_model(a_node(offers_nvidia=False), a_state())

    model.forget_agent("n1")
    model.hear("n1", 1.0, a_state())

    assert model.agent_counts(1.0) == (0, 0)
    assert model.changes(1.0) == Changes((), ("uid-n1",))


def test_a_node_replaced_under_its_name_is_another_node() -> None:
    model = a_model(a_node(), a_state())

    model.observe_node(a_node(uid="uid-new"))
    replaced = model.changes(1.0)
    model.hear("n1", 2.0, a_state(node_uid="uid-new"))
    settled = model.changes(2.0)

    assert replaced.removed_node_uids == ("uid-n1",)
    assert [facts.state.node_uid for facts in replaced.facts] == ["uid-new"]
    assert not replaced.facts[0].trusted
    assert settled == Changes((NodeFacts(a_state(node_uid="uid-new")),))


def test_a_node_that_left_kubernetes_is_removed_though_its_agent_speaks_on() -> None:
    model = a_model(a_node(), a_state())

    model.forget_node("n1")
    model.hear("n1", 1.0, a_state())

    assert model.changes(1.0) == Changes((), ("uid-n1",))


def test_nothing_is_synced_until_every_agent_was_heard_or_given_up_on() -> None:
    model = ClusterModel(TTL_S)
    model.observe_node(a_node("cpu-only", offers_nvidia=False))
    model.expect_agent("n1", 0.0)
    model.expect_agent("n2", 0.0)

    reasons = [model.unsynced_reason(0.0)]
    model.hear("n1", 1.0, a_state())
    reasons += [model.unsynced_reason(29.9), model.unsynced_reason(30.0)]

    assert reasons == ["2 of 2 agents not heard yet", "1 of 2 agents not heard yet", ""]


def a_model(node: ClusterNode, state: NodeState) -> ClusterModel:
    """One node, its agent heard at 0 and its facts published."""
    model = ClusterModel(TTL_S)
    model.observe_node(node)
    model.expect_agent(node.name, 0.0)
    model.hear(node.name, 0.0, state)
    model.changes(0.0)
    return model


def published(model: ClusterModel, now_s: float) -> tuple[NodeFacts, ...]:
    model.check_silence(now_s)
    return model.changes(now_s).facts


def apply(reader: dict[str, NodeFacts], changes: Changes) -> None:
    for uid in changes.removed_node_uids:
        del reader[uid]
    reader.update({facts.state.node_uid: facts for facts in changes.facts})


def by_uid(model: ClusterModel) -> dict[str, NodeFacts]:
    return {facts.state.node_uid: facts for facts in model.facts()}
