from typing import Any

import pytest

from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import NodeMode, NodeState, PodPresence
from gpuloom.model.snapshot import ClosedGpu, NodeFacts, NodePlace, PodAllocation
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from services.discovery.core.cluster import NOT_HEARD, SILENT, Changes, ClusterModel, ClusterNode, TrustChange
from services.discovery.core.desired import Desired, GpuFault
from services.discovery.core.findings import Cause, Finding
from services.discovery.core.pods import NodePod
from services.discovery.core.trust import REASONS
from tests.unit.discovery.builders import (
    GRACE_S,
    TTL_S,
    a_gpu,
    a_gpuloom_node,
    a_node,
    a_pod,
    a_ref,
    a_state,
    an_allocation,
    held,
    share,
    two_gpus,
)


def a_model(node: ClusterNode, state: NodeState, *pods: NodePod) -> ClusterModel:
    """One node, its agent heard at 0 and its facts published."""
    model = ClusterModel(TTL_S, GRACE_S)
    model.observe_node(node)
    for pod in pods:
        model.observe_pod(pod)
    model.expect_agent(node.name, 0.0)
    model.hear(node.name, 0.0, state)
    model.changes(0.0)
    return model


def published(model: ClusterModel, now_s: float) -> tuple[NodeFacts, ...]:
    model.check_silence(now_s)
    return model.changes(now_s).facts


def only(model: ClusterModel) -> NodeFacts:
    (facts,) = model.facts()
    return facts


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (a_state(node_uid=""), Cause.NODE_UID_UNKNOWN),
        (a_state(node_uid="uid-other"), Cause.NODE_REPLACED),
        (a_state(mode=NodeMode.UNKNOWN), Cause.MODE_UNKNOWN),
        (a_state(mode=NodeMode.GPULOOM), Cause.TWO_AUTHORITIES),
        (a_state(holders_unknown_reason="no answer"), Cause.HOLDERS_UNKNOWN),
    ],
)
def test_what_an_agent_says_can_cost_its_node_the_trust_until_it_says_otherwise(
    trouble: NodeState, cause: Cause
) -> None:
    model = a_model(a_node(), a_state())

    model.hear("n1", 1.0, trouble)
    (troubled,) = model.changes(1.0).facts
    model.hear("n1", 2.0, a_state())
    (healed,) = model.changes(2.0).facts

    assert troubled.untrusted_reasons == (REASONS[cause],)
    assert healed == NodeFacts(a_state())


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        (a_node(offers_gpuloom=True), Cause.TWO_AUTHORITIES),
        (a_node(uid="uid-replaced"), Cause.NODE_REPLACED),
    ],
)
def test_what_kubernetes_says_can_cost_a_node_the_trust_until_it_says_otherwise(
    trouble: ClusterNode, cause: Cause
) -> None:
    model = a_model(a_node(), a_state())

    model.observe_node(trouble)
    (troubled,) = model.changes(1.0).facts
    model.observe_node(a_node())
    (healed,) = model.changes(1.0).facts

    assert troubled.untrusted_reasons == (REASONS[cause],)
    assert healed.trusted


def test_silence_costs_the_trust_and_a_heartbeat_restores_it() -> None:
    model = a_model(a_node(), a_state())

    in_time = published(model, TTL_S)
    silent = published(model, TTL_S + 0.1)
    model.hear("n1", 40.0)
    heard = published(model, 40.0)

    assert in_time == ()
    assert silent == (NodeFacts(a_state(), (SILENT,)),)
    assert heard == (NodeFacts(a_state()),)


def test_heartbeats_hold_off_the_silence() -> None:
    model = a_model(a_node(), a_state())

    for now_s in range(0, 200, 5):
        model.hear("n1", float(now_s))
        assert published(model, float(now_s)) == ()

    assert published(model, 195.0 + TTL_S) == ()
    assert len(published(model, 195.1 + TTL_S)) == 1


def test_a_gpu_node_whose_agent_never_spoke_is_shown_untrusted() -> None:
    model = ClusterModel(TTL_S)
    model.observe_node(a_node())
    model.expect_agent("n1", 0.0)

    (facts,) = published(model, 0.0)

    assert facts.untrusted_reasons == (NOT_HEARD,)
    assert (facts.state.node_uid, facts.state.gpus) == ("uid-n1", ())


def test_a_node_without_gpus_or_agent_is_none_of_ours() -> None:
    model = ClusterModel(TTL_S)

    model.observe_node(ClusterNode("cpu-only", "uid-cpu-only"))
    model.observe_pod(a_pod(node="cpu-only"))

    assert not model.changes(0.0)


@pytest.mark.parametrize(
    "sign",
    [{"offers_nvidia": True}, {"offers_gpuloom": True}, {"labelled_gpus": True}, {"mode": NodeMode.GPULOOM}],
)
def test_any_sign_of_gpus_makes_a_node_ours(sign: dict[str, Any]) -> None:
    model = ClusterModel(TTL_S)

    model.observe_node(ClusterNode("n1", "uid-n1", **sign))

    assert [facts.untrusted_reasons for facts in model.changes(0.0).facts] == [(NOT_HEARD,)]


def test_an_agent_nobody_follows_any_more_is_believed_until_its_time_is_over() -> None:
    model = a_model(ClusterNode("n1", "uid-n1"), a_state())

    model.forget_agent("n1")
    early, counts = published(model, TTL_S), model.agent_counts(TTL_S)
    model.check_silence(TTL_S + 0.1)

    assert (early, counts) == ((), (0, 0))
    assert model.changes(TTL_S + 0.1).removed_node_uids == ("uid-n1",)
    assert not list(model.facts())


def test_an_agent_that_is_replaced_in_time_costs_nothing() -> None:
    model = a_model(a_node(), a_state())

    model.forget_agent("n1")
    model.expect_agent("n1", 10.0)
    model.hear("n1", 20.0, a_state())

    assert published(model, 20.0 + TTL_S) == ()
    assert model.agent_counts(50.0) == (1, 1)


def test_a_gpu_node_whose_agent_is_gone_for_good_shows_no_gpus_any_more() -> None:
    model = a_model(a_node(), a_state())

    model.forget_agent("n1")
    (facts,) = published(model, TTL_S + 0.1)

    assert (facts.state.gpus, facts.untrusted_reasons) == ((), (NOT_HEARD,))


def test_an_agent_that_speaks_after_it_was_forgotten_is_not_heard() -> None:
    model = a_model(a_node(), a_state())

    model.forget_agent("n1")
    model.hear("n1", TTL_S, a_state())

    assert [facts.untrusted_reasons for facts in published(model, TTL_S + 0.1)] == [(NOT_HEARD,)]


def test_a_node_replaced_under_its_name_is_another_node() -> None:
    model = a_model(a_node(), a_state())

    model.observe_node(a_node(uid="uid-new"))
    replaced = model.changes(1.0)
    model.hear("n1", 2.0, a_state(node_uid="uid-new"))
    settled = model.changes(2.0)

    assert replaced.removed_node_uids == ("uid-n1",)
    assert [facts.state.node_uid for facts in replaced.facts] == ["uid-new"]
    assert not replaced.facts[0].trusted
    assert settled.facts == (NodeFacts(a_state(node_uid="uid-new")),)


def test_a_node_that_left_kubernetes_is_removed_though_its_agent_speaks_on() -> None:
    model = a_model(a_node(), a_state())

    model.forget_node("n1")
    model.hear("n1", 1.0, a_state())

    assert model.changes(1.0) == Changes((), ("uid-n1",))


def test_where_a_node_is_comes_from_kubernetes() -> None:
    place = NodePlace(zone="z1", capacity_type="spot")

    assert only(a_model(a_node(place=place), a_state())).place == place


def test_believable_allocations_of_pods_that_have_not_ended_are_shown_by_pod_uid() -> None:
    pods = [
        a_pod("b", share("a", 500)),
        a_pod("a", share("a", 500)),
        a_pod("ended", share("b"), terminal=True),
        a_pod("copied", allocation=an_allocation("other", share("b"))),
        a_pod("plain"),
    ]

    facts = only(a_model(a_gpuloom_node(), two_gpus(), *pods))

    assert facts.allocations == tuple(
        PodAllocation(a_ref(name), "main", (share("a", 500),)) for name in ("a", "b")
    )


def test_a_change_of_a_pod_touches_its_node_alone() -> None:
    model = a_model(a_gpuloom_node(), two_gpus())
    model.observe_node(a_gpuloom_node("n2"))
    model.changes(0.0)

    model.observe_pod(a_pod("train", share("a")))
    bound = model.changes(1.0)
    model.observe_pod(a_pod("train", share("a")))
    repeated = model.changes(1.0)
    model.forget_pod("uid-train")
    gone = model.changes(1.0)

    assert [len(facts.allocations) for facts in bound.facts] == [1]
    assert not repeated
    assert gone.facts == (NodeFacts(two_gpus()),)


def test_a_disagreement_that_lag_explains_closes_its_gpu_when_its_grace_is_over() -> None:
    model = a_model(a_gpuloom_node(), two_gpus(held("train", "b")), a_pod("train", share("a")))

    def beat_and_publish(now_s: float) -> Changes:
        model.hear("n1", now_s)
        model.check_silence(now_s)
        return model.changes(now_s)

    early = beat_and_publish(GRACE_S - 1)
    closing = beat_and_publish(GRACE_S)
    model.hear("n1", GRACE_S, two_gpus(held("train", "a")))
    clearing = model.changes(GRACE_S)

    finding = Finding(Cause.HELD_WITHOUT_ALLOCATION, "GPU-b", "uid-train")
    assert not early
    assert [facts.closed_gpus for facts in closing.facts] == [(ClosedGpu("GPU-b", REASONS[finding.cause]),)]
    assert closing.facts[0].trusted
    assert closing.distrust == (TrustChange("n1", "uid-n1", finding, appeared=True),)
    assert clearing.facts[0].closed_gpus == ()
    assert clearing.distrust == (TrustChange("n1", "uid-n1", finding, appeared=False),)


def test_causes_are_counted_while_they_last() -> None:
    model = a_model(a_gpuloom_node(), two_gpus(), a_pod("one", share("a")), a_pod("two", share("a")))

    contested = model.distrust_counts()
    model.forget_node("n1")
    removed = model.changes(1.0)

    assert {cause: count for cause, count in contested.items() if count} == {Cause.SECOND_OWNER: 1}
    assert [change.appeared for change in removed.distrust] == [False]
    assert set(model.distrust_counts().values()) == {0}


def test_usage_alone_changes_nothing_but_usage() -> None:
    model = a_model(a_node(), a_state())

    model.hear("n1", 1.0, a_state(utilization=0.5))
    changes = model.changes(1.0)

    assert changes.facts == (NodeFacts(a_state(utilization=0.5)),)
    assert changes.usage_only == {"uid-n1"}
    assert only(model) == changes.facts[0]


def test_usage_beside_another_change_is_no_change_of_usage_alone() -> None:
    model = a_model(a_node(), a_state())

    model.hear("n1", 1.0, a_state(utilization=0.5))
    model.hear("n1", 1.0, a_state(utilization=0.5, holders_unknown_reason="no answer"))
    changes = model.changes(1.0)

    assert (len(changes.facts), changes.usage_only) == (1, frozenset())


def test_a_pod_that_comes_or_goes_is_told_though_nobody_holds_anything_by_it() -> None:
    model = a_model(a_node(), a_state(presence=PodPresence(("uid-train",))))

    model.hear("n1", 1.0, a_state(presence=PodPresence(())))
    changes = model.changes(1.0)

    assert [facts.state.presence for facts in changes.facts] == [PodPresence(())]
    assert changes.usage_only == frozenset()


def test_usage_of_a_node_keyed_by_another_uid_keeps_the_key_of_kubernetes() -> None:
    model = a_model(a_node(uid="uid-new"), a_state())

    model.hear("n1", 1.0, a_state(utilization=0.5))

    assert [facts.state.node_uid for facts in model.changes(1.0).facts] == ["uid-new"]


def test_nothing_is_synced_until_every_agent_was_heard_or_given_up_on() -> None:
    model = ClusterModel(TTL_S)
    model.observe_node(a_node("cpu-only", offers_nvidia=False))
    model.expect_agent("n1", 0.0)
    model.expect_agent("n2", 0.0)

    reasons = [model.unsynced_reason(0.0)]
    model.hear("n1", 1.0, a_state())
    reasons += [model.unsynced_reason(29.9), model.unsynced_reason(30.0)]

    assert reasons == ["2 of 2 agents not heard yet", "1 of 2 agents not heard yet", ""]


def test_what_should_stand_on_a_node_comes_from_its_agent() -> None:
    notice = SpotNotice(SpotNoticeKind.INTERRUPTION, None, "aws")
    broken = a_gpu("b", 1, health=GpuHealth.LOST, health_reason="it fell off the bus")
    state = a_state(mode=NodeMode.GPULOOM, gpus=(a_gpu(), broken), spot=notice)

    desired = a_model(a_gpuloom_node(), state).desired("uid-n1")

    fault = GpuFault("GPU-b", 1, GpuHealth.LOST, "it fell off the bus")
    assert desired == Desired(NodeMode.GPULOOM, 2, 30720, notice, (fault,))
    assert not desired.healthy


@pytest.mark.parametrize(
    "state", [a_state(node_uid=""), a_state(node_uid="uid-other"), a_state(mode=NodeMode.UNKNOWN)]
)
def test_nothing_should_stand_on_a_node_by_the_word_of_an_agent_that_is_not_its_own(state: NodeState) -> None:
    assert a_model(a_node(), state).desired("uid-n1") is None


def test_nothing_should_stand_on_a_node_whose_agent_is_not_heard() -> None:
    model = ClusterModel(TTL_S)
    model.observe_node(a_node())
    model.expect_agent("n1", 0.0)
    never = model.desired("uid-n1")

    model.hear("n1", 0.0, a_state())
    heard = model.desired("uid-n1")
    model.check_silence(TTL_S + 1)

    assert (never, model.desired("uid-n1"), model.desired("uid-unknown")) == (None, None, None)
    assert heard == Desired(NodeMode.NVIDIA, 1, 15360)
