"""One test at least for each cause that costs a node or a GPU the trust."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import HolderSource, NodeMode, NodeState, PodRef
from gpuloom.model.snapshot import ClosedGpu
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from services.discovery.core.findings import Cause
from services.discovery.core.trust import MAX_DETAILS, REASONS, Case, Voice, judge
from tests.strategies import node_states
from tests.unit.discovery.builders import (
    GRACE_S,
    SLICE,
    a_foreign_process,
    a_gpuloom_node,
    a_node,
    a_plugged_pod,
    a_pod,
    an_allocation,
    held,
    share,
    two_gpus,
)
from tests.unit.discovery.judging import KUBELET, PROCESS, at_once, causes, judged, plugged, settled


@pytest.mark.parametrize("voice", [Voice.NEVER, Voice.HEARD])
def test_an_agent_that_never_reported_closes_its_node(voice: Voice) -> None:
    assert at_once(None, voice=voice) == {(Cause.AGENT_NOT_HEARD, "")}


def test_a_silent_agent_closes_its_node() -> None:
    assert at_once(two_gpus(), voice=Voice.SILENT) == {(Cause.AGENT_SILENT, "")}


def test_what_a_silent_agent_said_is_not_held_against_pods_that_have_changed_since() -> None:
    assert settled(two_gpus(held("gone")), voice=Voice.SILENT) == {(Cause.AGENT_SILENT, "")}


def test_an_agent_without_a_node_uid_closes_its_node() -> None:
    assert at_once(two_gpus(node_uid="")) == {(Cause.NODE_UID_UNKNOWN, "")}


def test_a_node_replaced_under_the_same_name_is_closed_until_its_own_agent_reports() -> None:
    assert at_once(two_gpus(held("old")), node=a_gpuloom_node(uid="uid-new")) == {(Cause.NODE_REPLACED, "")}


def test_an_agent_without_a_mode_closes_its_node() -> None:
    assert at_once(two_gpus(mode=NodeMode.UNKNOWN)) == {(Cause.MODE_UNKNOWN, "")}


@pytest.mark.parametrize("label", NodeMode)
def test_a_mode_label_that_is_missing_or_lags_behind_costs_no_trust(label: NodeMode) -> None:
    assert at_once(two_gpus(), node=a_gpuloom_node(mode=label)) == set()


@pytest.mark.parametrize(
    ("mode", "offers_nvidia", "offers_gpuloom"),
    [
        (NodeMode.NVIDIA, True, True),
        (NodeMode.GPULOOM, True, True),
        (NodeMode.GPULOOM, True, False),
        (NodeMode.NVIDIA, False, True),
    ],
)
def test_a_node_that_offers_gpus_its_agent_does_not_give_out_is_closed(
    mode: NodeMode, offers_nvidia: bool, offers_gpuloom: bool
) -> None:
    node = a_node(offers_nvidia=offers_nvidia, offers_gpuloom=offers_gpuloom)

    assert at_once(two_gpus(mode=mode), node=node) == {(Cause.TWO_AUTHORITIES, "")}


def test_a_node_whose_holders_are_not_known_is_closed_and_the_detail_says_why() -> None:
    judgement = judged(two_gpus(held("gone"), holders_unknown_reason="no answer"), waited_s=GRACE_S)

    assert judgement.untrusted_reasons == (REASONS[Cause.HOLDERS_UNKNOWN],)
    assert judgement.details == ("no answer",)


def test_an_allocation_that_can_not_be_read_closes_the_node_because_it_may_mean_any_gpu() -> None:
    assert at_once(two_gpus(), a_pod(problem="the allocation is not JSON")) == {
        (Cause.UNREADABLE_ALLOCATION, "")
    }


def test_the_allocation_of_another_pod_closes_the_gpus_it_names() -> None:
    copied = a_pod("copy", allocation=an_allocation("original", share("b")))

    assert at_once(two_gpus(), copied) == {(Cause.ALLOCATION_OF_ANOTHER_POD, "GPU-b")}


@pytest.mark.parametrize("state", [two_gpus(), None])
def test_a_foreign_allocation_of_gpus_that_are_not_known_closes_the_node(state: NodeState | None) -> None:
    copied = a_pod("copy", allocation=an_allocation("original", share("a"), share("z")))

    assert (Cause.ALLOCATION_OF_ANOTHER_POD, "") in at_once(state, copied)


def test_an_allocation_on_another_node_counts_once_lag_can_not_explain_it() -> None:
    stray = a_pod("stray", allocation=an_allocation("stray", share("b"), node="n2"))

    assert at_once(two_gpus(), stray) == set()
    assert settled(two_gpus(), stray) == {(Cause.ALLOCATION_OF_ANOTHER_NODE, "GPU-b")}


def test_an_allocation_of_a_gpu_that_fell_off_the_bus_costs_no_other_gpu() -> None:
    judgement = judged(two_gpus(), a_pod("train", share("z"), share("a")))

    assert causes(judgement) == {(Cause.UNKNOWN_DEVICE, "GPU-z")}
    assert judgement.untrusted_reasons == ()
    assert judgement.closed_gpus == (ClosedGpu("GPU-z", REASONS[Cause.UNKNOWN_DEVICE]),)
    assert judgement.details == ("GPU-z: pod team/train was given GPU-z",)


def test_a_machine_that_registers_again_may_share_a_gpu_between_pods_as_before() -> None:
    pods = [
        a_pod(name, allocation=an_allocation(name, share("a", 300), node="before")) for name in ("one", "two")
    ]
    state = two_gpus(held("one"), held("two"))

    assert at_once(state, *pods) == set()
    assert settled(state, *pods) == {(Cause.ALLOCATION_OF_ANOTHER_NODE, "GPU-a")}


def test_of_two_pods_with_one_unknown_gpu_the_same_is_named_whichever_was_seen_first() -> None:
    one, other = a_pod("one", share("z")), a_pod("other", share("z"))

    judgements = judged(two_gpus(), one, other), judged(two_gpus(), other, one)

    assert [judgement.details for judgement in judgements] == [("GPU-z: pod team/one was given GPU-z",)] * 2


def test_a_holder_of_a_gpu_that_fell_off_the_bus_costs_no_other_gpu() -> None:
    judgement = judged(two_gpus(held("train", "z")), a_pod("train", share("a")))

    assert causes(judgement) == {(Cause.UNKNOWN_DEVICE, "GPU-z")}
    assert judgement.untrusted_reasons == ()


@pytest.mark.parametrize("device_id", ["MIG-4711", "0"])
def test_a_held_device_without_the_uuid_of_a_gpu_may_be_any_and_closes_the_node(device_id: str) -> None:
    strange = replace(held("train", source=KUBELET), devices=(DeviceRef(device_id),))

    assert at_once(plugged(strange), a_plugged_pod()) == {(Cause.UNKNOWN_DEVICE, "")}


def test_a_prediction_of_a_gpu_that_is_gone_counts_only_until_the_kubelet_shows_its_choice() -> None:
    pod = a_plugged_pod(allocation=an_allocation("train", share("z"), advisory=True))

    assert at_once(plugged(), pod) == {(Cause.UNKNOWN_DEVICE, "GPU-z")}
    assert settled(plugged(held(source=KUBELET)), pod) == set()


def test_a_pod_that_ended_has_no_say() -> None:
    ended = [a_pod("one", terminal=True, problem="not JSON"), a_pod("two", share("z"), terminal=True)]

    assert settled(two_gpus(), *ended) == set()


def test_a_pod_that_does_not_hold_its_devices_yet_is_no_disagreement() -> None:
    pods = [a_pod("waiting", share("a")), a_pod("sharing", share("b", 400)), a_pod("other", share("b", 600))]

    assert settled(two_gpus(held("sharing", "b")), *pods) == set()


def test_a_pod_that_holds_more_than_its_allocation_closes_that_gpu_after_the_grace() -> None:
    state, pod = two_gpus(held("train", "a", "b")), a_pod("train", share("a"))

    assert at_once(state, pod) == set()
    assert settled(state, pod) == {(Cause.HELD_WITHOUT_ALLOCATION, "GPU-b")}


def test_a_pod_without_any_allocation_that_holds_a_gpu_closes_it_after_the_grace() -> None:
    state = two_gpus(held("sneaky", source=PROCESS))

    assert at_once(state, a_pod("sneaky")) == set()
    assert settled(state, a_pod("sneaky")) == {(Cause.HELD_WITHOUT_ALLOCATION, "GPU-a")}


def test_a_pod_whose_allocation_can_not_be_believed_is_not_found_twice_for_holding() -> None:
    unreadable = a_pod("train", problem="not JSON")

    assert settled(two_gpus(held("train")), unreadable) == {(Cause.UNREADABLE_ALLOCATION, "")}


def test_a_process_on_the_card_of_its_pod_s_slice_is_where_it_belongs() -> None:
    pod = a_pod("train", share("a", 143, SLICE))

    assert settled(two_gpus(held("train", mig=SLICE), held("train", source=PROCESS)), pod) == set()


@pytest.mark.parametrize("source", [HolderSource.RUNTIME, KUBELET, PROCESS])
def test_a_pod_just_deleted_may_be_listed_for_a_while(source: HolderSource) -> None:
    mode = NodeMode.NVIDIA if source is KUBELET else NodeMode.GPULOOM
    state = two_gpus(held("gone", source=source), mode=mode)

    assert at_once(state) == set()
    assert settled(state) == {(Cause.HOLDER_WITHOUT_POD, "GPU-a")}


def test_a_holder_that_could_not_be_joined_to_a_pod_closes_its_gpu_after_the_grace() -> None:
    nameless = replace(held("train", source=KUBELET), pod=PodRef("team", "train", ""))

    assert settled(plugged(nameless), a_plugged_pod()) == {(Cause.HOLDER_WITHOUT_POD, "GPU-a")}


def test_a_pod_that_ended_may_stay_in_the_kubelet_s_list_but_not_in_the_runtime() -> None:
    ended = a_plugged_pod(terminal=True)

    assert settled(plugged(held(source=KUBELET)), ended) == set()
    assert settled(two_gpus(held()), ended) == {(Cause.HOLDER_WITHOUT_POD, "GPU-a")}


def test_a_foreign_process_closes_its_gpu_after_the_grace_and_is_named() -> None:
    judgement = judged(two_gpus(a_foreign_process("b", 17, 18)), waited_s=GRACE_S)

    assert causes(judgement) == {(Cause.FOREIGN_PROCESS, "GPU-b")}
    assert judgement.untrusted_reasons == ()
    assert judgement.closed_gpus == (ClosedGpu("GPU-b", "a process outside any pod holds a GPU"),)
    assert judgement.details == ("GPU-b: held by a process outside any pod (processes 17, 18)",)


def test_foreign_processes_that_follow_one_another_are_one_that_grows_old() -> None:
    def case(pid: int) -> Case:
        return Case(a_gpuloom_node(), two_gpus(a_foreign_process("a", pid)), Voice.HEARD)

    first = judge(case(1), {}, 0.0, GRACE_S)
    later = judge(case(2), first.since_s, GRACE_S, GRACE_S)

    assert causes(later) == {(Cause.FOREIGN_PROCESS, "GPU-a")}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (share("a"), share("a")),
        (share("a", 600), share("a", 500)),
        (share("a"), share("a", 143, SLICE)),
        (share("a", 143, SLICE), share("a", 143, SLICE)),
    ],
)
def test_two_live_pods_with_a_right_to_one_device_close_it_at_once(one: Any, other: Any) -> None:
    pods = a_pod("one", one), a_pod("other", other), a_pod("third", share("b"))

    judgement = judged(two_gpus(), *pods)

    assert causes(judgement) == {(Cause.SECOND_OWNER, "GPU-a")}
    assert judgement.details == ("GPU-a: owned by team/one, team/other beyond its capacity",)


def test_a_gpu_that_one_pod_was_given_and_another_holds_has_two_owners() -> None:
    state = two_gpus(held("thief", "a"))

    assert (Cause.SECOND_OWNER, "GPU-a") in at_once(state, a_pod("owner", share("a")), a_pod("thief"))


def test_two_predictions_of_one_gpu_are_no_owners() -> None:
    pods = [
        a_plugged_pod(name, allocation=an_allocation(name, share("a"), advisory=True))
        for name in ("one", "two")
    ]

    assert settled(plugged(), *pods) == set()


def test_a_gpu_given_anew_after_its_owner_ended_has_one_owner() -> None:
    pods = a_pod("before", share("a"), terminal=True), a_pod("after", share("a"))

    assert settled(two_gpus(held("after")), *pods) == set()


def test_slices_side_by_side_have_owners_of_their_own() -> None:
    pods = a_pod("one", share("a", 143, SLICE)), a_pod("two", share("a", 143, MigPlacement(1, "1g.5gb")))

    assert settled(two_gpus(), *pods) == set()


def test_a_disagreement_that_was_gone_in_between_starts_anew() -> None:
    pods = {"uid-train": a_pod("train", share("a"))}
    bad = Case(a_gpuloom_node(), two_gpus(held("train", "b")), Voice.HEARD, pods)
    good = replace(bad, state=two_gpus(held("train", "a")))

    seen = judge(bad, {}, 0.0, GRACE_S)
    gone = judge(good, seen.since_s, GRACE_S - 1, GRACE_S)
    back = judge(bad, gone.since_s, GRACE_S, GRACE_S)

    assert seen.due_s == GRACE_S
    assert (gone.findings, gone.due_s) == ((), None)
    assert (back.findings, back.due_s) == ((), 2 * GRACE_S)


def test_every_cause_has_a_text_of_its_own_without_names_in_it() -> None:
    assert set(REASONS) == set(Cause)
    assert len(set(REASONS.values())) == len(Cause)


def test_closed_gpus_stay_within_what_a_reader_takes_and_the_node_s_own_come_first() -> None:
    strangers = [a_pod(f"p{number}", share(f"0{number}")) for number in range(2 * MAX_GPUS_PER_NODE)]
    owners = a_pod("one", share("b")), a_pod("other", share("b"))

    closed = judged(two_gpus(), *strangers, *owners).closed_gpus

    assert len(closed) == MAX_GPUS_PER_NODE
    assert ClosedGpu("GPU-b", REASONS[Cause.SECOND_OWNER]) in closed


def test_details_stay_within_what_a_reader_takes() -> None:
    pods = [a_pod(f"p{number}", problem="not JSON") for number in range(300)]

    details = judged(two_gpus(), *pods).details

    assert len(details) == MAX_DETAILS
    assert details[-1] == f"and {301 - MAX_DETAILS} more"


@given(node_states(uids=("uid-n1",)), st.sampled_from(Voice))
def test_whatever_an_agent_says_there_is_a_judgement_and_it_repeats_itself(
    state: NodeState, voice: Voice
) -> None:
    pods = a_pod("train", share("a")), a_pod("a", share("b", 143, SLICE)), a_plugged_pod("plugged")

    judgement = judged(state, *pods, voice=voice, waited_s=GRACE_S)

    assert judgement == judged(state, *pods, voice=voice, waited_s=GRACE_S)
    assert judgement.due_s is None
    missing = {gpu_uuid for cause, gpu_uuid in causes(judgement) if cause is Cause.UNKNOWN_DEVICE}
    assert {closed.gpu_uuid for closed in judgement.closed_gpus} <= {gpu.uuid for gpu in state.gpus} | missing
    assert len(judgement.closed_gpus) == len({closed.gpu_uuid for closed in judgement.closed_gpus})
