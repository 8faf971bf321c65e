"""Whether a pod is NVIDIA's dcgm-exporter, and where it serves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.kube.cache import Change
from services.node_agent.exporter.core.detection import DcgmPods, dcgm_url

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def a_pod(
    name: str = "dcgm",
    *,
    labels: Any = None,
    image: str = "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.0",
    ports: Any = None,
    node: str = "n1",
    namespace: str = "gpu-operator",
    **status: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": image, "ports": ports}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", **status},
    }


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(),
        a_pod(image="registry:5000/dcgm-exporter@sha256:0123"),
        a_pod(labels={"app": "nvidia-dcgm-exporter"}, image="mirror/x"),
        a_pod(labels={"app.kubernetes.io/name": "dcgm-exporter"}, image="mirror/x"),
    ],
)
def test_it_is_known_by_its_labels_or_its_image(pod: dict[str, Any]) -> None:
    assert dcgm_url(pod) == "http://10.0.0.7:9400/metrics"


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(image="train:1"),
        a_pod(image="dcgm-exporter-dashboard"),
        a_pod(phase="Pending"),
        a_pod(podIP=None),
        a_pod(podIP="evil.example/x"),
        a_pod(conditions=[{"type": "Ready", "status": "False"}]),
    ],
)
def test_others_and_those_that_do_not_work_are_not_it(pod: dict[str, Any]) -> None:
    assert dcgm_url(pod) == ""


def test_the_port_named_metrics_is_where_it_serves() -> None:
    ports = [{"name": "health", "containerPort": 1}, {"name": "metrics", "containerPort": 9500}]

    assert dcgm_url(a_pod(ports=ports)) == "http://10.0.0.7:9500/metrics"


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert dcgm_url(a_pod(podIP="fd00::7")) == "http://[fd00::7]:9400/metrics"


def test_it_is_followed_as_it_comes_and_goes() -> None:
    pods, pod, gone = DcgmPods("n1", ["gpu-operator"]), a_pod(), a_pod(phase="Failed")
    seen = [pods.url()]

    for change in (Change(None, pod), Change(pod, gone), Change(gone, pod), Change(pod, None)):
        pods.hear(change)
        seen.append(pods.url())

    url = "http://10.0.0.7:9400/metrics"
    assert seen == ["", url, "", url, ""]


def test_pods_of_other_nodes_and_of_other_namespaces_are_not_believed() -> None:
    here, elsewhere = DcgmPods("n1", ["monitoring"]), DcgmPods("n2", ["gpu-operator"])

    for pods in (here, elsewhere):
        pods.hear(Change(None, a_pod()))

    assert (here.url(), elsewhere.url()) == ("", "")


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_no_pod_whatever_it_holds_stops_the_informer(pod: dict[str, Any]) -> None:
    DcgmPods("n1", ["gpu-operator"]).hear(Change(None, pod))

    assert dcgm_url(pod) == ""


@given(labels=JSON, image=JSON, ports=JSON, conditions=JSON, podIP=JSON)
def test_no_part_of_a_pod_whatever_it_holds_stops_the_informer(**parts: Any) -> None:
    pods = DcgmPods("n1", ["gpu-operator"])

    pods.hear(Change(None, a_pod(**parts)))

    assert isinstance(pods.url(), str)
