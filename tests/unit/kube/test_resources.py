import pytest

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.resources import LEASES, NODES, PODS, Resource


def test_paths_follow_group_scope_and_namespace() -> None:
    custom = Resource("gpu.warp.dev", "v1alpha1", "gpuworkloads", "GPUWorkload")

    assert PODS.collection_path() == "/api/v1/pods"
    assert PODS.object_path("p", "ns", "binding") == "/api/v1/namespaces/ns/pods/p/binding"
    assert NODES.object_path("n", "ignored") == "/api/v1/nodes/n"
    assert LEASES.api_version == "coordination.k8s.io/v1"
    assert custom.collection_path("ns") == "/apis/gpu.warp.dev/v1alpha1/namespaces/ns/gpuworkloads"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_address_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        PODS.object_path(name, "ns")


def test_a_name_can_not_climb_out_of_its_path() -> None:
    assert PODS.object_path("../../nodes/n", "ns") == "/api/v1/namespaces/ns/pods/..%2F..%2Fnodes%2Fn"


def test_a_namespaced_object_needs_its_namespace() -> None:
    with pytest.raises(InvalidRequestError, match="namespace"):
        PODS.object_path("p")
