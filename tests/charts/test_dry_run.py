"""Every preset, as a real API server would take it; and every pod of ours in a restricted namespace."""

import subprocess
from pathlib import Path

import pytest
import yaml

from gpuloom.kube.resources import NAMESPACES
from tests.charts.test_rendering import PRESETS, PRINTED, preset
from tests.cluster.helm import ROOT, Document, Helm
from tests.cluster.shared import AGENT_NAMESPACE, SharedControlPlane

pytestmark = pytest.mark.real

RESTRICTED = "restricted-check"


def applied(plane: SharedControlPlane, path: Path, *options: str) -> str:
    """What kubectl complains about; empty if the server took it all."""
    kubectl = plane.plane.binaries.path("kubectl")
    command = (
        *(str(kubectl), "--kubeconfig", str(plane.plane.admin_kubeconfig), "apply", "--server-side"),
        *("--force-conflicts", *options, "-f", str(path)),
    )
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    return result.stderr.strip() if result.returncode else ""


@pytest.fixture(scope="module")
def cluster(shared_control_plane: SharedControlPlane) -> SharedControlPlane:
    """With our definitions and a restricted namespace."""

    async def prepare() -> None:
        await shared_control_plane.plane.apply(ROOT / "deploy" / "crds")
        async with shared_control_plane.client() as client:
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            await client.create(NAMESPACES, {"metadata": {"name": RESTRICTED, "labels": labels}})

    shared_control_plane.background.run(prepare())
    return shared_control_plane


def written(documents: list[Document], folder: Path) -> Path:
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_a_real_api_server_takes_a_preset(
    cluster: SharedControlPlane, helm: Helm, tmp_path: Path, name: str
) -> None:
    documents = helm.render("gpuloom", *preset(name))

    assert applied(cluster, written(documents, tmp_path), "--dry-run=server") == ""


def test_a_real_api_server_takes_the_printed_values_and_the_plain_manifests(
    cluster: SharedControlPlane, helm: Helm, tmp_path: Path
) -> None:
    alias = helm.render("gpu-autoscaler", "-f", str(PRINTED), "--set", "monitoring.enabled=true")
    kubectl = cluster.plane.binaries.path("kubectl")

    kustomized = subprocess.run(  # noqa: S603 - our own program
        (str(kubectl), "kustomize", str(ROOT / "deploy")), capture_output=True, text=True, check=True
    )

    (tmp_path / "kustomized.yaml").write_text(kustomized.stdout, encoding="utf-8")
    assert applied(cluster, written(alias, tmp_path), "--dry-run=server") == ""
    assert applied(cluster, tmp_path / "kustomized.yaml", "--dry-run=server") == ""


def test_every_pod_but_the_agent_is_admitted_to_a_restricted_namespace(
    cluster: SharedControlPlane, helm: Helm, tmp_path: Path
) -> None:
    documents = helm.render("gpuloom", "--set", "monitoring.enabled=true")
    workloads = [one for one in documents if one["kind"] in ("Deployment", "DaemonSet", "Job", "CronJob")]

    refused = {}
    for workload in workloads:
        spec = workload["spec"].get("jobTemplate", workload)["spec"]["template"]["spec"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": workload["metadata"]["name"], "namespace": RESTRICTED},
            # Accounts and classes are of another namespace, and not what is asked about.
            "spec": {k: v for k, v in spec.items() if k not in ("serviceAccountName", "runtimeClassName")},
        }
        said = applied(cluster, written([pod], tmp_path), "--dry-run=server")
        if said:
            refused[workload["metadata"]["name"]] = said

    assert len(workloads) > 5
    assert refused.keys() == {"gpuloom-node-agent"}
    assert 'violates PodSecurity "restricted' in refused["gpuloom-node-agent"]
    assert all(
        one["metadata"]["namespace"] == AGENT_NAMESPACE for one in workloads if one["kind"] == "DaemonSet"
    )
