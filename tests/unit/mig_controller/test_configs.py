"""What GPUNodeConfigs ask for, and what they and sharing policies are told."""

from dataclasses import replace

import pytest

from gpuloom.model.gpu import Gpu, SharingMode
from gpuloom.model.layout import Sharing
from gpuloom.model.sharing import GpuNodeConfigSpec, GpuSharingPolicySpec, MpsSettings, SharingStrategy
from services.mig_controller.core.cards import UNCUT, Card
from services.mig_controller.core.configs import ConfigPlan, plan_config
from services.mig_controller.core.reports import divided_by_nvidia, nvidia_text, policy_condition
from tests.unit.mig_controller.builders import a_card, a_slice, place
from tests.unit.mig_controller.test_steering import a_node

SPEC = GpuNodeConfigSpec("n1")


def planned(spec: GpuNodeConfigSpec, card: Card) -> ConfigPlan:
    return plan_config(spec, [card], ["c1"])


@pytest.mark.parametrize(
    ("spec", "sharing"),
    [
        (replace(SPEC, mps_enabled=True), Sharing(SharingMode.MPS)),
        (replace(SPEC, mps_enabled=True, mps_max_clients=4), Sharing(SharingMode.MPS, least_milli=250)),
        (
            replace(SPEC, time_slicing_enabled=True, time_slicing_replicas=3),
            Sharing(SharingMode.TIME_SLICING, least_milli=333),
        ),
    ],
)
def test_an_idle_gpu_is_shared_as_asked_once_and_a_used_one_is_waited_for(
    spec: GpuNodeConfigSpec, sharing: Sharing
) -> None:
    idle = a_card(cut=False)
    gpu = Gpu("g", 0, "m", "a", 1, sharing=sharing.mode, least_milli=sharing.least_milli)

    (request,) = planned(spec, idle).requests
    done = planned(spec, replace(idle, sharing=sharing.mode, gpu=gpu))
    used = planned(spec, replace(idle, owner="team/x"))

    assert request.sharing == sharing
    assert (done.requests, done.reasons) == ((), {})
    assert used.requests == ()
    assert "team/x" in used.reasons["GPU-n1-0"]


def test_mps_is_not_switched_on_where_no_container_could_be_its_client() -> None:
    card = a_card(cut=False, takes_clients=False)
    spec = GpuSharingPolicySpec(SharingStrategy.MPS)

    by_mps = planned(replace(SPEC, mps_enabled=True), card)
    by_time = planned(replace(SPEC, time_slicing_enabled=True), card)

    assert by_mps.requests == ()
    assert "by environment" in by_mps.reasons[card.uuid]
    assert len(by_time.requests) == 1
    assert policy_condition(spec, [card], []).status is False
    assert policy_condition(spec, [card, a_card("n2")], []).status is True


def test_a_gpu_that_can_t_be_cut_can_be_shared_and_is_told_so() -> None:
    card = replace(a_card(cut=False), geometry=UNCUT, model="T4")

    shared = planned(replace(SPEC, mps_enabled=True), card)
    cut = planned(replace(SPEC, mig_profiles=("1g.5gb",)), card)

    assert len(shared.requests) == 1
    assert "T4 can't be cut" in cut.reasons[card.uuid]


def test_a_cut_gpu_is_not_shared_otherwise() -> None:
    found = planned(replace(SPEC, mps_enabled=True), a_card("n1", a_slice("1g.5gb@0")))

    assert found.requests == ()
    assert "set migEnabled to false" in found.reasons["GPU-n1-0"]


def test_a_policy_is_told_whether_pods_can_be_given_what_it_says() -> None:
    cut = a_card("n1", a_slice("1g.5gb@0"))
    mig = GpuSharingPolicySpec(SharingStrategy.MIG, mig_profile="1g.5gb")
    mps = GpuSharingPolicySpec(SharingStrategy.MPS, mps=MpsSettings(max_clients=4))
    by_time = GpuSharingPolicySpec(SharingStrategy.TIMESLICING, replicas_per_gpu=3)

    there = policy_condition(mig, [cut], [])
    other = policy_condition(replace(mig, mig_profile="1g.24gb"), [cut], [])
    nowhere = policy_condition(mps, [], [])
    share = policy_condition(by_time, [cut], [])

    assert (there.status, other.status, nowhere.status, share.status) == (True, False, False, True)
    assert "1 are free" in there.message
    assert "333 thousandths" in share.message


def test_on_nodes_of_mode_nvidia_what_nvidias_own_parts_do_is_reported() -> None:
    plain = a_node("n9", place("1g.5gb@0"))
    labels = (
        ("nvidia.com/gpu.replicas", "4"),
        ("nvidia.com/gpu.sharing-strategy", "time-slicing"),
        ("nvidia.com/mig.config", "all-1g.5gb"),
        ("nvidia.com/mig.config.state", "success"),
    )
    node = replace(plain, place=replace(plain.place, labels=labels))
    policy = GpuSharingPolicySpec(SharingStrategy.TIMESLICING, replicas_per_gpu=4)

    condition = policy_condition(policy, [a_card(cut=False)], [node])
    (gpu,) = divided_by_nvidia(node)

    assert nvidia_text(node) == "MIG layout all-1g.5gb (success); 4 replicas of each GPU by time-slicing"
    assert "n9: MIG layout all-1g.5gb (success); 4 replicas" in condition.message
    assert (gpu.stage, gpu.instances[0].stage) == ("MIGEnabled", "Available")


def test_a_config_that_contradicts_itself_does_not_cut_a_gpu_to_and_fro() -> None:
    both = replace(SPEC, mig_enabled=False, mig_profiles=("3g.20gb",))

    (off,) = planned(both, a_card()).requests
    after = planned(both, a_card(cut=False))

    assert off.mig_enabled is False
    assert (after.requests, after.reasons) == (
        (),
        {"GPU-n1-0": "migEnabled is false, so migProfiles do not count"},
    )


def test_a_slice_in_use_that_is_not_wanted_is_waited_for_and_nothing_is_asked_meanwhile() -> None:
    card = a_card("n1", a_slice("2g.10gb@0", "team/x"), a_slice("3g.20gb@4"))

    found = planned(replace(SPEC, mig_profiles=("3g.20gb",)), card)

    assert found.requests == ()
    assert found.reasons == {"GPU-n1-0": "2g.10gb at 0 goes once nobody uses it: team/x does"}
