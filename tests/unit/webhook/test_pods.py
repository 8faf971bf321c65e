"""What becomes of pods at admission: who is rewritten, as what, and that a second pass changes nothing."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.custom.sharing import gpu_sharing_policy
from gpuloom.codec.environment import sees_only_its_allocation
from gpuloom.codec.pod import pod_request
from gpuloom.model.sharing import GpuSharingPolicy
from services.webhook.core.pods import (
    Advice,
    Offers,
    PodPolicy,
    SharingMode,
    Surroundings,
    mutated_pod,
    wants_advice,
)
from services.webhook.core.surroundings import surroundings_of

OFFERS = Offers(shares=True, mig_profiles=frozenset({"1g.5gb", "2g.10gb", "1g.10gb"}))
IDLE = Advice(utilization=0.2, mig_profile="1g.5gb", milli=125)
ON, OFF = {"gpu-autoscaler.io/sharing-enabled": "true"}, {"gpu-autoscaler.io/sharing-enabled": "false"}


def a_pod(limits: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": limits or {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", **metadata},
        "spec": {"containers": [container]},
    }


def limits_of(pod: dict[str, Any]) -> dict[str, str]:
    limits: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return limits


def around(namespace: dict[str, str] | None = None, **known: Any) -> Surroundings:
    return Surroundings(namespace or {}, **{"offers": OFFERS, "advice": IDLE, **known})


@pytest.mark.parametrize(
    ("pod", "namespace", "policy", "rewritten"),
    [
        (a_pod(), {}, PodPolicy(), False),
        (a_pod(), ON, PodPolicy(), True),
        (a_pod(), {}, PodPolicy(share_by_default=True), True),
        (a_pod(), OFF, PodPolicy(share_by_default=True), False),
        (a_pod(labels={"gpu-autoscaler.io/sharing": "enabled"}), {}, PodPolicy(), True),
        (a_pod(labels={"gpu-autoscaler.io/sharing": "enabled"}), OFF, PodPolicy(), False),
        (a_pod(labels={"gpu-autoscaler.io/sharing": "disabled"}), ON, PodPolicy(), False),
        (a_pod(annotations={"gpu-autoscaler.io/optimize": "false"}), ON, PodPolicy(), False),
        (a_pod({"nvidia.com/gpu": "2"}), ON, PodPolicy(), False),
        (a_pod({"cpu": "1"}), ON, PodPolicy(), False),
    ],
)
def test_only_who_was_opted_in_is_rewritten_and_a_pods_own_word_wins(
    pod: dict[str, Any], namespace: dict[str, str], policy: PodPolicy, rewritten: bool
) -> None:
    changed, _ = mutated_pod(pod, "team", policy, around(namespace))

    assert (changed != pod) == rewritten
    assert (changed["metadata"].get("labels") or {}).get("gpu-autoscaler.io/optimized") == (
        "true" if rewritten else None
    )


@pytest.mark.parametrize(("namespace", "labels"), [("kube-system", ON), ("team", OFF)])
def test_a_namespace_of_the_system_or_one_that_opted_out_is_left_alone(
    namespace: str, labels: dict[str, str]
) -> None:
    policy = PodPolicy(share_by_default=True, scheduler_name="ours", gang_timeout_s=60)
    pod = a_pod({"gpuloom.dev/gpu-milli": "500"}, labels={"gpuloom.dev/gang": "g"})
    known = around(labels, offers=Offers(shares=True, by_environment=True))

    changed, told = mutated_pod(pod, namespace, policy, known)

    assert (changed, told) == (pod, [])


def test_a_pod_that_is_on_a_node_already_is_left_alone() -> None:
    policy = PodPolicy(share_by_default=True, scheduler_name="ours", gang_timeout_s=60)
    pods = a_pod(labels={"gpuloom.dev/gang": "g"}), a_pod({"gpuloom.dev/gpu-milli": "500"})
    known = around(ON, offers=Offers(shares=True, mig_profiles=OFFERS.mig_profiles, by_environment=True))

    for pod in pods:
        pod["spec"]["nodeName"] = "n1"

        assert mutated_pod(pod, "team", policy, known) == (pod, [])
        assert not wants_advice(pod, "team", policy, known)


def test_history_below_half_becomes_the_advised_slice_which_placement_understands() -> None:
    changed, told = mutated_pod(a_pod(), "team", PodPolicy(), around(ON))

    assert changed["metadata"]["annotations"] == {
        "gpuloom.dev/mig-profile": "1g.5gb",
        "gpu-autoscaler.io/optimized": "true",
    }
    assert limits_of(changed).keys() == {"gpuloom.dev/gpu-milli"}
    assert pod_request(changed) is not None
    assert "1g.5gb" in told[0]


@pytest.mark.parametrize("advice", [None, Advice(utilization=0.7, mig_profile="1g.5gb", milli=125)])
def test_a_pod_that_is_busy_or_not_known_keeps_its_gpu_and_is_told_how_its_namespace_shares(
    advice: Advice | None,
) -> None:
    changed, told = mutated_pod(a_pod(), "team", PodPolicy(), around(ON, advice=advice))

    assert changed == a_pod(annotations={"gpu-autoscaler.io/sharing-mode": "mps"})
    assert told == []


def test_limits_are_not_asked_for_where_no_node_could_keep_a_pod_to_them() -> None:
    offers = Offers(shares=True, by_environment=True)
    known = around(ON, offers=offers, advice=Advice(utilization=0.2, milli=250))
    timed = a_pod(labels={"gpu-autoscaler.io/sharing-mode": "timeslicing"})

    whole, told = mutated_pod(a_pod(), "team", PodPolicy(), known)
    share, _ = mutated_pod(a_pod({"gpuloom.dev/gpu-milli": "500"}), "team", PodPolicy(), known)
    by_time, _ = mutated_pod(timed, "team", PodPolicy(), known)

    assert limits_of(whole) == {"nvidia.com/gpu": "1"}
    assert "limited" in told[0]
    assert "gpuloom.dev/enforcement" not in (share["metadata"].get("annotations") or {})
    assert limits_of(by_time) == {"gpuloom.dev/gpu-milli": "250"}


def test_a_slice_that_nvidias_plugin_gives_out_is_asked_for_under_its_name() -> None:
    advised = Advice(utilization=0.2, plugin_resource="nvidia.com/mig-1g.10gb")
    offers = Offers(plugin_resources=frozenset({"nvidia.com/mig-1g.10gb"}))
    named = a_pod(labels={"gpu-autoscaler.io/mig-profile": "1g.10gb"})

    by_history, _ = mutated_pod(a_pod(), "team", PodPolicy(), around(ON, advice=advised, offers=offers))
    by_name, _ = mutated_pod(named, "team", PodPolicy(), around(advice=None, offers=offers))
    elsewhere, _ = mutated_pod(a_pod(), "team", PodPolicy(), around(ON, advice=advised, offers=Offers()))

    assert limits_of(by_history) == limits_of(by_name) == {"nvidia.com/mig-1g.10gb": "1"}
    assert limits_of(elsewhere) == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("annotations", "labels", "namespace", "enforcement"),
    [
        ({}, {}, ON, "mps"),
        ({}, {"gpu-autoscaler.io/sharing-mode": "timeslicing"}, {}, "none"),
        ({}, {"gpu-autoscaler.io/sharing-mode": "mps"}, {}, "mps"),
        ({"gpuloom.dev/enforcement": "none"}, {}, ON, "none"),
        ({}, {}, {}, None),
    ],
)
def test_a_share_of_ones_own_gets_the_way_of_sharing_that_is_asked_for(
    annotations: dict[str, str], labels: dict[str, str], namespace: dict[str, str], enforcement: str | None
) -> None:
    pod = a_pod({"gpuloom.dev/gpu-milli": "500"}, labels=labels, annotations=annotations)

    changed, _ = mutated_pod(pod, "team", PodPolicy(), around(namespace))

    assert changed["metadata"]["annotations"].get("gpuloom.dev/enforcement") == enforcement
    assert limits_of(changed) == {"gpuloom.dev/gpu-milli": "500"}


def test_a_gang_by_its_size_alone_is_that_of_its_controller() -> None:
    owners = [{"kind": "Job", "name": "train", "controller": True}]
    sized = a_pod(annotations={"gpuloom.dev/gang-size": "4"}, ownerReferences=owners)
    named = a_pod(labels={"gpuloom.dev/gang": "mine"}, annotations={"gpuloom.dev/gang-timeout-seconds": "9"})
    policy = PodPolicy(gang_timeout_s=300)

    by_size, _ = mutated_pod(sized, "team", policy, around())
    by_name, _ = mutated_pod(named, "team", policy, around())
    alone, _ = mutated_pod(a_pod(), "team", policy, around())

    assert by_size["metadata"]["labels"] == {"gpuloom.dev/gang": "train"}
    assert by_size["metadata"]["annotations"]["gpuloom.dev/gang-timeout-seconds"] == "300"
    assert by_name == named
    assert alone == a_pod()


@pytest.mark.parametrize(
    ("pod", "namespace", "wanted"),
    [
        (a_pod(), ON, True),
        (a_pod(), {}, False),
        (a_pod(), OFF, False),
        (a_pod({"nvidia.com/gpu": "2"}), ON, False),
        (a_pod(labels={"gpu-autoscaler.io/mig-profile": "1g.5gb"}), ON, False),
        (a_pod(labels={"gpu-autoscaler.io/sharing": "enabled"}), {}, True),
    ],
)
def test_history_is_asked_for_only_where_it_would_change_something(
    pod: dict[str, Any], namespace: dict[str, str], wanted: bool
) -> None:
    assert wants_advice(pod, "team", PodPolicy(), around(namespace, advice=None)) == wanted


def test_a_profile_that_no_gpu_here_has_is_told_and_not_asked_for() -> None:
    pod = a_pod(annotations={"gpu-autoscaler.io/mig-profile": "7g.80gb"})

    changed, told = mutated_pod(pod, "team", PodPolicy(), around(ON))

    assert changed == pod
    assert "no GPU here can be cut into 7g.80gb" in told[0]


@pytest.mark.parametrize(
    ("mode", "enforcement"), [(SharingMode.MPS, "mps"), (SharingMode.TIMESLICING, "none")]
)
def test_a_policys_share_is_taken_with_its_way_of_sharing(mode: SharingMode, enforcement: str) -> None:
    known = around(ON, advice=None, sharing_mode=mode, share_milli=250)

    changed, _ = mutated_pod(a_pod(), "team", PodPolicy(), known)

    assert limits_of(changed) == {"gpuloom.dev/gpu-milli": "250"}
    assert changed["metadata"]["annotations"]["gpuloom.dev/enforcement"] == enforcement


def a_policy(strategy: str, **settings: object) -> GpuSharingPolicy:
    spec = {"strategy": strategy, **settings}
    return gpu_sharing_policy({"metadata": {"name": "p", "uid": "u"}, "spec": spec})


@pytest.mark.parametrize(
    ("policy", "limits", "annotations"),
    [
        (
            a_policy("mps", mpsConfig={"threadPercentage": 30, "memoryMib": 4096}),
            {"gpuloom.dev/gpu-milli": "300", "gpuloom.dev/gpu-memory-mib": "4096"},
            {"gpuloom.dev/enforcement": "mps"},
        ),
        (
            a_policy("mps", mpsConfig={"maxClients": 6}),
            {"gpuloom.dev/gpu-milli": "166"},
            {"gpuloom.dev/enforcement": "mps"},
        ),
        (
            a_policy("timeslicing", timeSlicingConfig={"replicasPerGPU": 3}),
            {"gpuloom.dev/gpu-milli": "333"},
            {"gpuloom.dev/enforcement": "none"},
        ),
        (
            a_policy("mig", migConfig={"profile": "1g.5gb"}),
            {"gpuloom.dev/gpu-milli": "125"},
            {"gpuloom.dev/mig-profile": "1g.5gb"},
        ),
    ],
)
def test_a_policy_says_what_a_pod_becomes(
    policy: GpuSharingPolicy, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    offers = Offers(shares=True, mig_profiles=frozenset({"1g.5gb"}))
    known = surroundings_of(ON, offers, policy)

    changed, _ = mutated_pod(a_pod(), "team", PodPolicy(), known)

    assert limits_of(changed) == limits
    assert annotations.items() <= changed["metadata"]["annotations"].items()


def test_pods_of_ours_get_what_delivery_by_environment_needs() -> None:
    pod = a_pod({"gpuloom.dev/gpu-milli": "500"})
    pod["spec"]["containers"].append(
        {"name": "side", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    )
    known = around(offers=Offers(shares=True, by_environment=True))

    changed, _ = mutated_pod(pod, "team", PodPolicy(), known)

    assert changed["spec"]["runtimeClassName"] == "nvidia"
    assert sees_only_its_allocation(changed, "main")


@pytest.mark.parametrize(
    ("given_name", "result"), [(None, "ours"), ("default-scheduler", "ours"), ("own", "own")]
)
def test_a_gpu_pod_that_names_no_scheduler_gets_ours(given_name: str | None, result: str) -> None:
    pod = a_pod()
    if given_name:
        pod["spec"]["schedulerName"] = given_name

    changed, _ = mutated_pod(pod, "team", PodPolicy(scheduler_name="ours"), around())

    assert changed["spec"]["schedulerName"] == result


@pytest.mark.parametrize("restart", [{}, {"restartPolicy": "Always"}])
def test_gpus_that_only_an_init_container_asks_for_count(restart: dict[str, str]) -> None:
    pod = a_pod({"cpu": "1"})
    limits = {"limits": {"gpuloom.dev/gpu-milli": "500"}}
    pod["spec"]["initContainers"] = [{"name": "first", "resources": limits, **restart}]
    known = around(ON, offers=Offers(shares=True, by_environment=True))
    by_nri = around(ON)

    changed, _ = mutated_pod(pod, "team", PodPolicy(scheduler_name="ours"), known)
    limited, _ = mutated_pod(pod, "team", PodPolicy(), by_nri)

    assert changed["spec"]["schedulerName"] == "ours"
    assert sees_only_its_allocation(changed, "first")
    assert limited["metadata"]["annotations"] == {"gpuloom.dev/enforcement": "mps"}


WORDS = st.sampled_from(
    ["enabled", "disabled", "mig", "mps", "timeslicing", "true", "false", "1g.5gb", "", "x"]
)
KEYS = st.sampled_from(
    [f"gpu-autoscaler.io/{word}" for word in ("sharing", "sharing-mode", "mig-profile", "optimize")]
)
ADVICE = st.one_of(
    st.none(),
    st.builds(
        Advice,
        st.floats(0, 1),
        st.sampled_from([None, "1g.5gb", "9g.1gb"]),
        st.sampled_from([None, 0, 125, 1000, 5000]),
        st.sampled_from([None, 4096]),
    ),
)


@given(
    st.dictionaries(KEYS, WORDS, max_size=3),
    st.dictionaries(KEYS, WORDS, max_size=3),
    st.sampled_from([{}, ON, OFF]),
    ADVICE,
    st.sampled_from([None, *SharingMode]),
    st.booleans(),
)
def test_admitting_a_pod_twice_is_admitting_it_once(
    labels: dict[str, str],
    annotations: dict[str, str],
    namespace: dict[str, str],
    advice: Advice | None,
    mode: SharingMode | None,
    by_environment: bool,
) -> None:
    pod = a_pod(labels=labels, annotations=annotations)
    before = copy.deepcopy(pod)
    offers = Offers(True, OFFERS.mig_profiles, by_environment)
    known = around(namespace, advice=advice, sharing_mode=mode, offers=offers)

    once, _ = mutated_pod(pod, "team", PodPolicy(scheduler_name="ours"), known)
    twice, _ = mutated_pod(copy.deepcopy(once), "team", PodPolicy(scheduler_name="ours"), known)

    assert pod == before
    assert twice == once
    assert pod_request(once) is not None
