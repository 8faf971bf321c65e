"""The command that the product documents print, as printed, on a real API server. No node runs its pods."""

from pathlib import Path

import pytest

from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import AUTOSCALING_POLICIES, DEPLOYMENTS, Resource
from tests.charts.test_rendering import PRINTED
from tests.cluster.helm import require_helm
from tests.cluster.shared import SharedControlPlane

pytestmark = pytest.mark.real

RELEASE, NAMESPACE = "gpu-autoscaler", "gpu-autoscaler-system"
COMMAND = f"upgrade --install {RELEASE} ./charts/gpu-autoscaler --namespace {NAMESPACE} --create-namespace -f"
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")


async def names(client: KubeClient, resource: Resource) -> set[str]:
    return {one["metadata"]["name"] for one in (await client.list(resource, Selection(NAMESPACE))).items}


async def test_the_printed_command_installs_what_is_printed_and_uninstall_keeps_the_definitions(
    shared_control_plane: SharedControlPlane, tmp_path: Path
) -> None:
    helm = require_helm(tmp_path, shared_control_plane.plane.admin_kubeconfig)

    helm.run(*COMMAND.split(), str(PRINTED))

    async with shared_control_plane.client() as client:
        deployments = await names(client, DEPLOYMENTS)
        policies = await names(client, POLICIES)
        scaling = (await client.list(AUTOSCALING_POLICIES)).items
        helm.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        assert not await names(client, DEPLOYMENTS)
        assert not (await client.list(AUTOSCALING_POLICIES)).items
    assert {
        "gpu-autoscaler-controller",
        "gpu-autoscaler-workloads",
        "gpu-autoscaler-discovery",
    } <= deployments
    assert deployments <= policies
    assert [one["metadata"]["name"] for one in scaling] == ["default"]
