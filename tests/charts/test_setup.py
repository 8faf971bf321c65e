"""The jobs of the charts on a real API server, each under its own account and its own rights."""

import base64
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from gpuloom.errors import NotAllowedError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import SECRETS, Resource
from gpuloom.roster import ROSTER
from gpuloom.runtime.clock import SystemClock
from gpuloom.setup.certificates import HEARD_BY_ALL, Order
from gpuloom.setup.cluster import Secrets, apply_definitions, write_certificates
from tests.cluster.helm import Helm
from tests.cluster.shared import AGENT_NAMESPACE, MANIFESTS, NAMESPACE, SharedControlPlane, account_of

pytestmark = pytest.mark.real

CLOCK = SystemClock()
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
POLICY = "autoscalingpolicies.gpu-autoscaler.io"


def ordered() -> Secrets:
    """What the rendered Job is told."""
    documents = yaml.safe_load_all((MANIFESTS / "certificates.yaml").read_text(encoding="utf-8"))
    (job,) = (one for one in documents if one["kind"] == "Job")
    arguments = [one.split("=", 1) for one in job["spec"]["template"]["spec"]["containers"][0]["args"]]
    services = dict(value.split("=", 1) for name, value in arguments if name == "--secret")
    (authority,) = (value for name, value in arguments if name == "--authority")
    return Secrets(key(authority), {identity: key(place) for identity, place in services.items()})


def key(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    return namespace, name


async def content(client: KubeClient, place: tuple[str, str]) -> dict[str, bytes]:
    secret = await client.get(SECRETS, place[1], place[0])
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}


async def test_certificates_are_made_renewed_and_rotated_with_no_more_than_the_jobs_rights(
    shared_control_plane: SharedControlPlane,
) -> None:
    account = await shared_control_plane.plane.service_account_kubeconfig(*account_of("certificates"))
    secrets, now = ordered(), CLOCK.now()
    agent = secrets.services["node_agent"]
    async with shared_control_plane.client(account) as job, shared_control_plane.client() as admin:
        await write_certificates(job, secrets, Order(now, 90))
        first = await content(admin, agent)
        await write_certificates(job, secrets, Order(now, 90))
        same = await content(admin, agent)
        await write_certificates(job, secrets, Order(now, 90, rotate=True))
        told = await content(admin, agent)
        await write_certificates(job, secrets, Order(now + HEARD_BY_ALL + timedelta(minutes=6), 90))
        rotated = await content(admin, agent)
        await admin.create(SECRETS, {"metadata": {"namespace": NAMESPACE, "name": "of-others"}})
        with pytest.raises(NotAllowedError):
            await job.get(SECRETS, "of-others", NAMESPACE)
        with pytest.raises(NotAllowedError):
            await job.list(SECRETS)
        authority = await content(admin, secrets.authority)
        for namespace, name in (*secrets.services.values(), secrets.authority, (NAMESPACE, "of-others")):
            await admin.delete(SECRETS, name, namespace)

    assert agent[0] == AGENT_NAMESPACE
    assert set(secrets.services) == set(ROSTER.identities)
    assert first == same
    assert told["tls.crt"] == first["tls.crt"]
    assert len(x509.load_pem_x509_certificates(told["ca.crt"])) == 2
    assert rotated["tls.crt"] != first["tls.crt"]
    assert authority.keys() == {"tls.crt", "tls.key", "ca.crt"}


async def test_the_upgrade_hook_brings_definitions_up_to_date_with_its_own_rights(
    shared_control_plane: SharedControlPlane, helm: Helm, tmp_path: Path
) -> None:
    hooks = [
        one
        for one in helm.render("gpuloom-crds", release="gpuloom")
        if "helm.sh/hook" in (one["metadata"].get("annotations") or {})
    ]
    rights = tmp_path / "rights.yaml"
    rights.write_text(yaml.safe_dump_all(one for one in hooks if one["kind"] != "Job"), encoding="utf-8")
    plane = shared_control_plane.plane
    await shared_control_plane.background.run_from_loop(plane.apply(rights))
    account = await plane.service_account_kubeconfig(*account_of("gpuloom-crds"))

    async with shared_control_plane.client(account) as job, shared_control_plane.client() as admin:
        await apply_definitions(job)
        names = {"names": {"shortNames": ["old"]}}
        await admin.patch(DEFINITIONS, POLICY, None, {"spec": names})
        await apply_definitions(job)
        renewed = await admin.get(DEFINITIONS, POLICY)
        with pytest.raises(NotAllowedError):
            await job.delete(DEFINITIONS, POLICY)

    assert {one["kind"] for one in hooks} == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in hooks} == {"pre-upgrade"}
    assert renewed["spec"]["names"]["shortNames"] == ["asp"]
