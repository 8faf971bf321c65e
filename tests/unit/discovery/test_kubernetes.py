"""What discovery reads in Kubernetes' JSON."""

from typing import Any

import orjson
import pytest

from gpuloom.codec.allocation import encode_allocation
from gpuloom.codec.facts import MAX_LABELS, node_facts_from_proto, node_facts_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import NodeFacts, NodePlace, Taint
from gpuloom.names import ANNOTATION_ALLOCATION
from services.discovery.adapters.kubernetes import PlaceLabels, cluster_node, internal_address, trimmed_node
from services.discovery.adapters.pods import agent_pod, node_pod, trimming
from services.discovery.core.pods import Asked
from tests.unit.discovery.builders import a_ref, a_state, an_allocation, share
from tests.unit.discovery.kubernetes_objects import (
    AGENT_LABELS,
    a_container,
    a_node_object,
    a_pod_object,
    an_agent_s_pod,
)

TRIM = trimming(AGENT_LABELS)


def test_a_node_is_read_as_far_as_discovery_needs_it() -> None:
    labels = {"gpuloom.dev/mode": "nvidia"}
    node = a_node_object(labels=labels, offers={"nvidia.com/mig-1g.5gb": "7", "gpuloom.dev/gpu-milli": "0"})

    read = cluster_node(node)

    assert (read.name, read.uid, read.mode) == ("n1", "uid-n1", NodeMode.NVIDIA)
    assert (read.offers_nvidia, read.offers_gpuloom, read.labelled_gpus) == (True, False, False)
    assert internal_address(node) == "10.0.0.1"


def test_the_place_of_a_node_is_read_from_its_labels_and_spec() -> None:
    labels = {
        "topology.kubernetes.io/region": "r1",
        "topology.kubernetes.io/zone": "r1-a",
        "topology.kubernetes.io/rack": "rack-7",
        "nvidia.com/gpu.clique": "domain.1",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "karpenter.sh/capacity-type": "on-demand",
    }
    taints = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "k", "effect": "NoExecute"}]
    spec = {"unschedulable": True, "taints": taints, "providerID": "aws:///r1-a/i-0abc"}

    place = cluster_node(
        a_node_object(labels=labels, spec=spec, offers={"cpu": "191500m", "memory": "2Ti"})
    ).place

    assert place == NodePlace(
        region="r1",
        zone="r1-a",
        rack="rack-7",
        nvlink_domain="domain.1",
        capacity_type="on-demand",
        instance_type="p5.48xlarge",
        unschedulable=True,
        taints=(Taint("gpu", "yes", "NoSchedule"), Taint("k", "", "NoExecute")),
        cpu_milli=191500,
        memory_bytes=2 * 2**40,
        provider_id="aws:///r1-a/i-0abc",
        labels=tuple(sorted(labels.items())),
    )


def test_of_many_labels_those_are_told_that_people_select_by() -> None:
    described = {
        "feature.node.kubernetes.io/cpu-cpuid.AVX": "true",
        "nvidia.com/gfd.timestamp": "1",
        "nvidia.com/gpu.deploy.dcgm": "true",
    }
    chosen = {"nvidia.com/gpu.product": "NVIDIA-H100", "team": "ml"}
    many = {f"zz/{number:03}": "" for number in range(MAX_LABELS)}

    few, cut = (cluster_node(a_node_object(labels=described | chosen | more)).place for more in ({}, many))

    assert dict(few.labels) == chosen
    assert len(cut.labels) == MAX_LABELS
    assert chosen.items() <= dict(cut.labels).items()


@pytest.mark.parametrize("spec", [{}, {"providerID": "x" * 2000}, {"providerID": 7}])
def test_a_machine_whose_name_cant_be_told_has_none(spec: dict[str, Any]) -> None:
    assert cluster_node(a_node_object(spec=spec)).place.provider_id == ""


def test_rack_and_nvlink_domain_are_read_from_the_labels_that_are_set() -> None:
    node = a_node_object(labels={"example.com/rack": "r", "example.com/domain": "d"})

    place = cluster_node(node, PlaceLabels("example.com/rack", "example.com/domain")).place

    assert (place.rack, place.nvlink_domain) == ("r", "d")


@pytest.mark.parametrize(
    ("labels", "paid"),
    [
        ({}, ""),
        ({"gpu-autoscaler.io/capacity-type": "reserved", "karpenter.sh/capacity-type": "spot"}, "reserved"),
        ({"gpu-autoscaler.io/capacity-type": "free", "karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"cloud.google.com/gke-preemptible": "true"}, "spot"),
        ({"cloud.google.com/gke-provisioning": "standard"}, "on-demand"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "regular"}, "on-demand"),
    ],
)
def test_how_a_node_is_paid_is_understood_in_every_dialect(labels: dict[str, str], paid: str) -> None:
    assert cluster_node(a_node_object(labels=labels)).place.capacity_type == paid


def test_a_mode_that_does_not_exist_is_no_mode() -> None:
    assert cluster_node(a_node_object(labels={"gpuloom.dev/mode": "both"})).mode is NodeMode.UNKNOWN


def test_an_amount_of_gpus_that_can_not_be_read_counts_as_some() -> None:
    read = cluster_node(a_node_object(offers={"nvidia.com/gpu": "many", "gpuloom.dev/gpu-milli": None}))

    assert read.offers_nvidia
    assert read.offers_gpuloom


@pytest.mark.parametrize("amount", ["many", None, "-3", [], {}])
def test_an_amount_of_cpu_that_can_not_be_read_is_not_known(amount: Any) -> None:
    assert cluster_node(a_node_object(offers={"cpu": amount})).place.cpu_milli == 0


def test_a_node_that_offers_more_than_any_machine_has_can_be_told_to_readers() -> None:
    largest = "9223372036854775807"
    offers = {"cpu": largest, "memory": largest, "nvidia.com/gpu": largest}
    place = cluster_node(a_node_object(offers=offers)).place

    told = node_facts_to_proto(NodeFacts(a_state(), place=place))

    assert node_facts_from_proto(told).place == place


def test_a_node_without_status_offers_nothing_and_has_no_address() -> None:
    node = {"metadata": {"name": "n1", "uid": "u1"}}

    assert not cluster_node(node).has_gpus
    assert internal_address(node) == ""


def test_a_node_without_a_uid_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        cluster_node({"metadata": {"name": "n1"}})


def test_a_trimmed_node_is_read_like_the_whole_one() -> None:
    node = a_node_object(offers={"nvidia.com/gpu": "8"})
    node["metadata"]["managedFields"] = [{}]
    node["status"]["images"] = [{"names": ["registry/image:1"] * 50}]

    trimmed = trimmed_node(node)

    assert cluster_node(trimmed) == cluster_node(node)
    assert "images" not in trimmed["status"]
    assert "managedFields" not in trimmed["metadata"]


def test_a_plain_pod_shrinks_to_its_identity_and_its_node() -> None:
    pod = TRIM(a_pod_object())

    assert pod == {
        "metadata": {"name": "train", "namespace": "team", "uid": "uid-train", "resourceVersion": "7"},
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"phase": "Running", "podIP": "10.1.0.1"},
    }
    assert len(orjson.dumps(pod)) < 250


@pytest.mark.parametrize(
    ("containers", "init", "asked"),
    [
        ([a_container()], [], Asked()),
        (
            [a_container(**{"nvidia.com/gpu": "2"}), a_container("b", **{"nvidia.com/gpu": "1"})],
            [],
            Asked(3, 3),
        ),
        ([a_container(**{"nvidia.com/mig-1g.5gb": "2"})], [], Asked(2, 2)),
        ([a_container(**{"gpuloom.dev/gpu-milli": "500"})], [], Asked()),
        (
            [a_container(**{"nvidia.com/gpu": "1"})],
            [a_container("i", **{"nvidia.com/gpu": "4"})],
            Asked(1, 4),
        ),
        (
            [a_container(**{"nvidia.com/gpu": "1"})],
            [{**a_container("s", **{"nvidia.com/gpu": "1"}), "restartPolicy": "Always"}],
            Asked(2, 2),
        ),
        ([a_container(**{"nvidia.com/gpu": "half"})], [], None),
    ],
)
def test_what_a_pod_asks_of_the_plugin_is_read_from_what_is_kept(
    containers: list[Any], init: list[Any], asked: Asked | None
) -> None:
    pod = node_pod(TRIM(a_pod_object(containers=containers, initContainers=init)))

    assert pod is not None
    assert pod.asked == asked


def test_an_allocation_is_read_from_what_is_kept() -> None:
    allocation = an_allocation("train", share("a"))
    pod = a_pod_object()
    pod["metadata"]["annotations"][ANNOTATION_ALLOCATION] = encode_allocation(allocation)

    read = node_pod(TRIM(pod))

    assert read is not None
    assert (read.ref, read.node_name, read.allocation, read.problem) == (
        a_ref("train"),
        "n1",
        allocation,
        "",
    )


@pytest.mark.parametrize("text", ["", "{}", "[", '{"v": 2}', 7])
def test_an_allocation_that_can_not_be_read_is_a_problem_of_its_pod(text: Any) -> None:
    pod = a_pod_object()
    pod["metadata"]["annotations"][ANNOTATION_ALLOCATION] = text

    read = node_pod(TRIM(pod))

    assert read is not None
    assert read.allocation is None
    assert read.problem


@pytest.mark.parametrize(("phase", "terminal"), [("Pending", False), ("Succeeded", True), ("Failed", True)])
def test_a_pod_has_ended_when_its_phase_says_so(phase: str, terminal: bool) -> None:
    pod = a_pod_object()
    pod["status"]["phase"] = phase

    read = node_pod(TRIM(pod))

    assert read is not None
    assert read.terminal is terminal


def test_a_pod_that_is_not_bound_is_on_no_node() -> None:
    assert node_pod(TRIM(a_pod_object(node=""))) is None


def test_an_agent_s_pod_is_known_by_what_is_kept() -> None:
    pod = an_agent_s_pod("agent-1", "n1", "10.0.0.7", leaving=True)

    found = agent_pod(TRIM(pod), "gpuloom-system", AGENT_LABELS)

    assert found == agent_pod(pod, "gpuloom-system", AGENT_LABELS)
    assert found is not None
    assert (found.host, found.leaving) == ("10.0.0.7", True)


@pytest.mark.parametrize("strange", [{"spec": None}, {"metadata": {}}, {"spec": {"containers": [7]}}, {}])
def test_whatever_a_pod_looks_like_it_can_be_trimmed(strange: dict[str, Any]) -> None:
    assert set(TRIM(strange)) == {"metadata", "spec", "status"}
