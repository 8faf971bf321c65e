from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.codec.pod import bound_node, is_terminal, kubelet_reports_end, pod_ref, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import PodRef
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind, TopologyPreference
from tests.effort import examples

GI = 2**30


def a_container(name: str = "main", limits: Any = None, requests: Any = None, **more: Any) -> dict[str, Any]:
    resources = {
        key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None
    }
    return {"name": name, "resources": resources} | more


def a_pod(
    *containers: Any, init: Any = (), annotations: Any = None, spec: Any = None, status: Any = None
) -> dict[str, Any]:
    return {
        "metadata": {"name": "train", "namespace": "team", "uid": "u-1", "annotations": annotations},
        "spec": {"containers": list(containers), "initContainers": list(init)} | (spec or {}),
        "status": status or {},
    }


def asked(pod: dict[str, Any]) -> PodRequest:
    request = pod_request(pod)
    assert request is not None
    return request


def gpus_of(limits: dict[str, Any], **annotations: str) -> GpuRequest:
    named = {f"gpuloom.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return asked(a_pod(a_container(limits=limits), annotations=named)).gpu


@pytest.mark.parametrize(
    "pod",
    [
        {},
        a_pod(),
        a_pod(a_container()),
        a_pod(a_container(limits={"cpu": "1"})),
        a_pod(a_container(limits={"nvidia.com/gpu": "0"})),
        a_pod(a_container(limits={"amd.com/gpu": "1", "nvidia.com/gpu.shared": 1})),
        a_pod(a_container(limits={"cpu": "not a number"})),
    ],
)
def test_a_pod_without_managed_resources_asks_for_nothing(pod: dict[str, Any]) -> None:
    assert pod_request(pod) is None


def test_whole_gpus_of_nvidias_plugin() -> None:
    assert gpus_of({"nvidia.com/gpu": "2"}) == GpuRequest(RequestKind.WHOLE, Authority.NVIDIA, count=2)


@pytest.mark.parametrize(
    ("resource", "profile"),
    [
        ("nvidia.com/mig-1g.5gb", "1g.5gb"),
        ("nvidia.com/mig-1g.5gb.me", "1g.5gb+me"),
        ("nvidia.com/mig-1g.24gb.me.all", "1g.24gb+me.all"),
        ("nvidia.com/mig-1g.24gb-me", "1g.24gb-me"),
        ("nvidia.com/mig-1g.34gb", "1g.34gb"),
    ],
)
def test_mig_slices_of_nvidias_plugin(resource: str, profile: str) -> None:
    request = gpus_of({resource: 3})

    assert (request.kind, request.authority, request.count) == (RequestKind.MIG, Authority.NVIDIA, 3)
    assert request.mig_profile == profile


def test_thousandths_below_one_gpu_are_a_share() -> None:
    request = gpus_of({"gpuloom.dev/gpu-milli": "250", "gpuloom.dev/gpu-memory-mib": "10240"})

    assert request == GpuRequest(RequestKind.SHARE, Authority.GPULOOM, count=1, milli=250, memory_mib=10240)


def test_a_multiple_of_a_thousand_is_whole_gpus() -> None:
    request = gpus_of({"gpuloom.dev/gpu-milli": "4k"})

    assert request == GpuRequest(RequestKind.WHOLE, Authority.GPULOOM, count=4, milli=1000)


@pytest.mark.parametrize(
    ("profile", "milli"), [("1g.5gb", 125), ("1g.10gb", 125), ("1g.10gb", 250), ("7g.40gb", 1000)]
)
def test_a_slice_on_demand_is_asked_for_by_profile_and_its_share(profile: str, milli: int) -> None:
    request = gpus_of({"gpuloom.dev/gpu-milli": milli}, mig_profile=profile)

    assert (request.kind, request.authority, request.count) == (RequestKind.MIG, Authority.GPULOOM, 1)
    assert (request.milli, request.mig_profile) == (milli, profile)


@pytest.mark.parametrize(
    ("limits", "annotations", "told"),
    [
        ({"gpuloom.dev/gpu-milli": 1500}, {}, r"1500 is neither a share .* e\.g\. 1000 or 2000"),
        ({"gpuloom.dev/gpu-milli": "0.5"}, {}, "must be a whole number, not '0.5'"),
        ({"gpuloom.dev/gpu-milli": -1}, {}, "must be a whole number"),
        ({"gpuloom.dev/gpu-milli": "half"}, {}, "'half' is not a quantity"),
        ({"gpuloom.dev/gpu-milli": [1]}, {}, "must be a quantity, not list"),
        ({"gpuloom.dev/gpu-milli": True}, {}, "must be a quantity, not True"),
        ({"gpuloom.dev/gpu-milli": 65_000}, {}, "at most 64 devices, not 65"),
        ({"nvidia.com/gpu": "9" * 18}, {}, "at most 64 devices"),
        ({"gpuloom.dev/gpu-memory-mib": 1024}, {}, "needs gpuloom.dev/gpu-milli beside it"),
        (
            {"nvidia.com/gpu": 1, "gpuloom.dev/gpu-milli": 500},
            {},
            "either for nvidia.com/\\* or for gpuloom.dev/",
        ),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1},
            {},
            "one kind of device, not for nvidia.com/gpu and",
        ),
        ({"nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-1g.5gb": 1}, {}, "one kind of device"),
        ({"nvidia.com/mig-all": 1}, {}, r"does not name a MIG profile; write e\.g\."),
        ({"nvidia.com/gpu": 1}, {"mig-profile": "1g.5gb"}, "goes with gpuloom.dev/gpu-milli"),
        (
            {"gpuloom.dev/gpu-milli": 200},
            {"mig-profile": "1g.10gb"},
            "must be 125 or 250 for profile 1g.10gb",
        ),
        ({"gpuloom.dev/gpu-milli": 125}, {"mig-profile": "1g"}, "no known GPU has the MIG profile '1g'"),
        (
            {"gpuloom.dev/gpu-milli": 125, "gpuloom.dev/gpu-memory-mib": 1},
            {"mig-profile": "1g.5gb"},
            "leave out",
        ),
        ({"nvidia.com/gpu": 2}, {"topology": "ring"}, "must be none, nvlink, numa or pcie, not 'ring'"),
        ({"nvidia.com/gpu": 2}, {"topology": "nvlink", "topology-required": "yes"}, "must be true or false"),
        ({"nvidia.com/gpu": 2}, {"topology-required": "true"}, "needs gpuloom.dev/topology"),
        ({"nvidia.com/gpu": 2}, {"gpu-architecture": "riva"}, "must be volta, turing, .* or blackwell"),
        ({"nvidia.com/gpu": 2}, {"gpu-model": "A100,,T4"}, "list of names with commas"),
        ({"nvidia.com/gpu": 2}, {"gpu-model": ""}, "list of names with commas"),
        ({"nvidia.com/gpu": 2}, {"gpu-model": "a," * 40}, "at most 32 names"),
        ({"nvidia.com/gpu": 2}, {"gpu-model": 7}, "must be text"),
    ],
)
def test_what_has_no_clear_meaning_is_refused_with_the_right_form(
    limits: dict[str, Any], annotations: dict[str, Any], told: str
) -> None:
    named = {f"gpuloom.dev/{key}": value for key, value in annotations.items()}

    with pytest.raises(InvalidRequestError, match=told):
        pod_request(a_pod(a_container(limits=limits), annotations=named))


def test_wishes_for_model_architecture_and_topology_are_read() -> None:
    request = gpus_of(
        {"nvidia.com/gpu": 2},
        gpu_model="V100, nvidia-h100-80gb ,Custom GPU 1",
        gpu_architecture="Volta,ada-lovelace",
        topology="nvlink",
        topology_required="true",
    )

    assert request.models == (
        "V100-SXM2-16GB",
        "V100-SXM2-32GB",
        "V100-PCIE-16GB",
        "H100-SXM5-80GB",
        "Custom GPU 1",
    )
    assert request.architectures == ("volta", "ada")
    assert (request.topology, request.topology_required) == (TopologyPreference.NVLINK, True)


def test_requests_and_limits_of_a_device_must_be_equal() -> None:
    equal = a_container(limits={"nvidia.com/gpu": "1"}, requests={"nvidia.com/gpu": 1})
    differing = a_container(limits={"nvidia.com/gpu": 2}, requests={"nvidia.com/gpu": 1})

    assert asked(a_pod(equal)).gpu.count == 1
    with pytest.raises(InvalidRequestError, match="requests and limits differ"):
        pod_request(a_pod(differing))


def test_main_containers_and_sidecars_add_up_and_init_containers_take_the_maximum() -> None:
    def gpu(name: str, count: int, **more: Any) -> dict[str, Any]:
        return a_container(name, limits={"nvidia.com/gpu": count}, **more)

    mains = (gpu("a", 1), gpu("b", 2))
    sidecar = gpu("s", 1, restartPolicy="Always")

    assert asked(a_pod(*mains)).gpu.count == 3
    assert asked(a_pod(*mains, init=[gpu("i", 2)])).gpu.count == 3
    assert asked(a_pod(*mains, init=[gpu("i", 5)])).gpu.count == 5
    assert asked(a_pod(*mains, init=[sidecar])).gpu.count == 4
    assert asked(a_pod(*mains, init=[sidecar, gpu("i", 5)])).gpu.count == 6
    assert asked(a_pod(*mains, init=[gpu("i", 5), sidecar])).gpu.count == 5
    assert asked(a_pod(a_container("plain"), init=[gpu("i", 5)])).gpu.count == 5


def test_the_first_main_container_that_asks_gets_the_devices() -> None:
    limits = {"nvidia.com/gpu": 1}
    init = [a_container("prepare", limits=limits)]

    assert (
        asked(a_pod(a_container("log"), a_container("train", limits=limits), init=init)).container == "train"
    )
    assert asked(a_pod(a_container("log"), init=init)).container == "prepare"


def test_only_one_container_may_ask_for_ours() -> None:
    limits = {"gpuloom.dev/gpu-milli": 100}

    with pytest.raises(InvalidRequestError, match="one container of a pod may ask"):
        pod_request(a_pod(a_container("a", limits=limits), a_container("b", limits=limits)))


def test_a_refusal_is_short_however_many_kinds_of_devices_a_pod_asks_for() -> None:
    limits = {f"nvidia.com/mig-1g.{size}gb": 1 for size in range(1, 5000)}

    with pytest.raises(InvalidRequestError, match="one kind of device") as refused:
        pod_request(a_pod(a_container("a", limits=limits)))

    assert len(str(refused.value)) < 512


def test_ours_and_nvidias_in_two_containers_of_a_pod_are_refused() -> None:
    ours = a_container("a", limits={"gpuloom.dev/gpu-milli": 100})
    nvidias = a_container("b", limits={"nvidia.com/gpu": 1})

    with pytest.raises(InvalidRequestError, match="not for both"):
        pod_request(a_pod(ours, nvidias))


def test_cpu_and_memory_are_effective_amounts_with_overhead() -> None:
    gpu = {"nvidia.com/gpu": 1}
    pod = a_pod(
        a_container("a", limits=gpu, requests={"cpu": "1500m", "memory": "1Gi"}),
        a_container("b", limits={"cpu": "500m", "memory": "1Gi"}),
        init=[a_container("i", requests={"cpu": 1, "memory": "5Gi"})],
        spec={"overhead": {"cpu": "250m", "memory": "1Gi"}, "runtimeClassName": "nvidia"},
    )

    request = asked(pod)

    assert (request.cpu_milli, request.memory_bytes) == (2250, 6 * GI)
    assert request.runtime_class == "nvidia"


def test_during_a_resize_the_larger_of_wanted_and_allocated_counts() -> None:
    pod = a_pod(
        a_container("a", limits={"nvidia.com/gpu": 1}, requests={"cpu": "1", "memory": "4Gi"}),
        status={"containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "3", "memory": "2Gi"}}]},
    )

    request = asked(pod)

    assert (request.cpu_milli, request.memory_bytes) == (3000, 4 * GI)


def test_amounts_of_the_pod_itself_override_those_of_its_containers() -> None:
    pod = a_pod(
        a_container("a", limits={"nvidia.com/gpu": 1}, requests={"cpu": "1", "memory": "4Gi"}),
        spec={"resources": {"requests": {"cpu": "6"}}, "overhead": {"cpu": "1"}},
    )

    request = asked(pod)

    assert (request.cpu_milli, request.memory_bytes) == (7000, 4 * GI)


def test_a_pod_is_known_by_name_and_uid() -> None:
    assert pod_ref(a_pod()) == PodRef("team", "train", "u-1")
    with pytest.raises(InvalidRequestError, match=r"metadata\.uid"):
        pod_ref({"metadata": {"name": "x"}})


def test_a_pod_has_ended_only_by_its_phase() -> None:
    assert is_terminal({"status": {"phase": "Succeeded"}})
    assert is_terminal({"status": {"phase": "Failed"}})
    assert not is_terminal(
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"}}
    )
    assert not is_terminal({})


def test_a_bound_pod_names_its_node() -> None:
    assert bound_node({"spec": {"nodeName": "n1"}}) == "n1"
    assert bound_node({"spec": {"nodeName": ""}}) is None
    assert bound_node({}) is None


def test_thousands_of_containers_are_refused() -> None:
    many = [a_container(f"c{i}", limits={"nvidia.com/gpu": 1}) for i in range(5000)]

    with pytest.raises(InvalidRequestError, match="at most 1000 containers"):
        pod_request(a_pod(*many))


FIELDS = ["limits", "requests", "name", "resources", "restartPolicy"]
RESOURCES = [
    "cpu",
    "memory",
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.5gb",
    "gpuloom.dev/gpu-milli",
    "gpuloom.dev/gpu-memory-mib",
]
ANNOTATIONS = [
    "gpuloom.dev/mig-profile",
    "gpuloom.dev/topology",
    "gpuloom.dev/topology-required",
    "gpuloom.dev/gpu-model",
    "gpuloom.dev/gpu-architecture",
]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["1", "500m", "1e9", "-3", "Always", "nvlink", "9" * 70]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FIELDS, *RESOURCES]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
AMOUNTS = JUNK | st.dictionaries(
    st.sampled_from(RESOURCES),
    JUNK,
)
CONTAINERS = JUNK | st.lists(
    JUNK
    | st.fixed_dictionaries(
        {"name": JUNK, "resources": st.fixed_dictionaries({"limits": AMOUNTS, "requests": AMOUNTS})}
    ),
    max_size=3,
)
PODS = JUNK | st.fixed_dictionaries(
    {
        "metadata": JUNK
        | st.fixed_dictionaries(
            {
                "annotations": JUNK
                | st.dictionaries(
                    st.sampled_from(ANNOTATIONS),
                    JUNK,
                )
            }
        ),
        "spec": JUNK
        | st.fixed_dictionaries(
            {
                "containers": CONTAINERS,
                "initContainers": CONTAINERS,
                "overhead": JUNK,
                "resources": JUNK,
                "nodeName": JUNK,
            }
        ),
        "status": JUNK | st.fixed_dictionaries({"containerStatuses": CONTAINERS, "phase": JUNK}),
    }
)


@settings(max_examples=examples(200))
@given(PODS)
def test_whatever_the_json_holds_the_answer_is_a_request_or_a_reason(pod: Any) -> None:
    for read in (pod_request, pod_ref, is_terminal, kubelet_reports_end, bound_node):
        try:
            read(pod)
        except InvalidRequestError:
            continue
