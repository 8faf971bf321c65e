"""What the doctor says of a cluster: nothing of a healthy one, and exactly what is wrong of any other."""

import base64
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from cryptography.hazmat.primitives.hashes import SHA256

from gpuloom.catalog.manifests import definitions
from gpuloom.cli.doctor.checks import findings_of
from gpuloom.cli.doctor.command import finding_lines
from gpuloom.cli.doctor.findings import Finding, Verdict
from gpuloom.cli.doctor.observed import Certificate, Observed, Prometheus, Right, RunProcess, Unread
from gpuloom.cli.doctor.reading import NEEDED_RIGHTS, ClusterReader
from gpuloom.errors import NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import Resource
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import ClusterSnapshot, NodeFacts
from gpuloom.model.version import StreamVersion
from gpuloom.rpc.authority import Pair, issue, new_authority
from tests.cluster.rights import granted

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
SERVICES = ("node-agent", "discovery", "scheduler-extender")


def a_pod(service: str, *, ready: bool = True, tag: str = "1.0", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{service}-0",
            "namespace": "gpuloom-system",
            "labels": {"app.kubernetes.io/name": service}
            | {k.replace("__", "/"): v for k, v in labels.items()},
        },
        "spec": {"nodeName": "n1", "containers": [{"image": f"gpuloom/{service}:{tag}"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def a_leader(**changes: Any) -> dict[str, Any]:
    pod = a_pod("scheduler-extender", **changes)
    pod["metadata"]["labels"]["gpuloom.dev/leader"] = "true"
    return pod


def a_deployment(service: str, replicas: int = 1) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": service}
    return {"metadata": {"name": service, "labels": labels}, "spec": {"replicas": replicas}}


def established(definition: dict[str, Any]) -> dict[str, Any]:
    return {**definition, "status": {"conditions": [{"type": "Established", "status": "True"}]}}


def of_an_older_version(name: str, field: str) -> dict[str, Any]:
    """As a cluster has it that was never told of the field."""
    (found,) = (deepcopy(one) for one in definitions() if one["metadata"]["name"] == name)
    for version in found["spec"]["versions"]:
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][field]
    return established(found)


def bundle_of(authority: Pair) -> str:
    return base64.b64encode(authority.certificate_pem()).decode()


AUTHORITY, OTHER_AUTHORITY = (new_authority(name, datetime(2026, 11, 1, tzinfo=UTC)) for name in ("a", "b"))


def a_certificate(left: timedelta, *, signed: bool = True) -> Certificate:
    signer = AUTHORITY.certificate.fingerprint(SHA256()).hex()
    return Certificate("x/webhook-tls", NOW + left, signed, "webhook", frozenset({signer}))


def a_webhook(bundle: str | None = None, kind: str = "MutatingWebhookConfiguration") -> dict[str, Any]:
    held = bundle_of(AUTHORITY) if bundle is None else bundle
    hook = {"name": "pods.gpuloom.dev", "clientConfig": {"caBundle": held}}
    return {
        "kind": kind,
        "metadata": {"name": "gpuloom-webhook"},
        "webhooks": [hook],
    }


def some_facts(
    *untrusted: str, health: GpuHealth = GpuHealth.HEALTHY, delivery: Delivery = Delivery.NRI
) -> ClusterSnapshot:
    gpu = Gpu("GPU-0", 0, "A100-SXM4-40GB", "ampere", 40_960, health, "XID 79")
    state = NodeState("n1", "uid-n1", NodeMode.GPULOOM, delivery, (gpu,))
    return ClusterSnapshot(StreamVersion("e", 1), {"uid-n1": NodeFacts(state, untrusted_reasons=untrusted)})


def policies(*names: str) -> tuple[dict[str, Any], ...]:
    return tuple({"metadata": {"name": name}, "spec": {"policyName": name}} for name in names)


def only_warning(binding: dict[str, Any]) -> dict[str, Any]:
    return {**binding, "spec": {**binding["spec"], "validationActions": ["Warn", "Audit"]}}


def a_lease(ahead_s: float) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"renewTime": (NOW + timedelta(seconds=ahead_s)).isoformat()}}


ADMISSION = policies("gpuloom-allocation-annotations", "gpuloom-runtime-classes")
VALIDATING = a_webhook(kind="ValidatingWebhookConfiguration")
PODS = (a_pod("node-agent"), a_pod("discovery"), a_leader())
HEALTHY = Observed(
    now=NOW,
    version=(1, 36),
    server_time=NOW,
    definitions=tuple(map(established, definitions())),
    shipped=definitions(),
    priority_classes=tuple({"metadata": {"name": f"gpuloom-{level}"}} for level in ("low", "medium", "high")),
    pods=PODS,
    deployments=(a_deployment("discovery"), a_deployment("scheduler-extender")),
    nodes=({"metadata": {"name": "n1"}, "status": {"capacity": {"gpuloom.dev/gpu-milli": "1000"}}},),
    node_leases=(a_lease(-3),),
    webhooks=(a_webhook(), VALIDATING),
    admission_policies=ADMISSION,
    admission_bindings=ADMISSION,
    certificates=(a_certificate(timedelta(days=60)),),
    rights=(Right("discovery", "system:serviceaccount:x:discovery", "patch", "nodes/status", allowed=True),),
    facts=some_facts(),
    prometheus=Prometheus("http://p:9090", gpu_series=8),
)


def wrong(observed: Observed) -> list[Finding]:
    return [f for f in findings_of(observed) if f.verdict in (Verdict.FAILED, Verdict.WARNING)]


def test_a_healthy_cluster_has_no_complaint_and_nothing_is_skipped() -> None:
    assert {finding.verdict for finding in findings_of(HEALTHY)} == {Verdict.OK}


FAULTS: dict[str, tuple[Callable[[], Observed], str, str]] = {
    "an old cluster": (lambda: replace(HEALTHY, version=(1, 24)), "kubernetes version", "1.24 is older"),
    "no policies in the version": (
        lambda: replace(HEALTHY, version=(1, 29)),
        "kubernetes version",
        "1.29 has no",
    ),
    "a definition is missing": (
        lambda: replace(
            HEALTHY,
            definitions=tuple(
                one for one in map(established, definitions()) if "gpuworkloads" not in str(one)
            ),
        ),
        "custom resources",
        "gpuworkloads.gpu.warp.dev",
    ),
    "a definition of an older version": (
        lambda: replace(
            HEALTHY,
            definitions=(
                *(established(one) for one in definitions() if "costbudgets" not in one["metadata"]["name"]),
                of_an_older_version("costbudgets.gpu-autoscaler.io", "monthlyLimit"),
            ),
        ),
        "custom resources",
        "costbudgets.gpu-autoscaler.io is of an older version: it drops v1alpha1.spec.monthlyLimit",
    ),
    "no priority classes": (
        lambda: replace(HEALTHY, priority_classes=()),
        "priority classes",
        "gpuloom-high",
    ),
    "a pod that is not ready": (
        lambda: replace(HEALTHY, pods=(a_pod("node-agent"), a_pod("discovery", ready=False), a_leader())),
        "service discovery",
        "gpuloom-system/discovery-0",
    ),
    "a service without pods": (
        lambda: replace(HEALTHY, pods=(a_pod("node-agent"), a_leader())),
        "service discovery",
        "has no pod",
    ),
    "a service that is scaled to nothing": (
        lambda: replace(HEALTHY, deployments=(*HEALTHY.deployments, a_deployment("webhook", 0))),  # type: ignore[misc]
        "service webhook",
        "has no pod",
    ),
    "pods that nobody could make": (
        lambda: replace(HEALTHY, deployments=(a_deployment("discovery", 2),)),
        "service discovery",
        "1 of 2 pods are there",
    ),
    "two versions": (
        lambda: replace(HEALTHY, pods=(a_pod("node-agent"), a_pod("discovery", tag="2.0"), a_leader())),
        "versions",
        "1.0, 2.0",
    ),
    "nobody leads": (
        lambda: replace(HEALTHY, pods=tuple(a_pod(name) for name in SERVICES)),
        "extender leader",
        "0 do: none",
    ),
    "a GPU node without an agent": (
        lambda: replace(
            HEALTHY,
            nodes=(
                *HEALTHY.nodes,
                {"metadata": {"name": "n2", "labels": {"nvidia.com/gpu.present": "true"}}},
            ),  # type: ignore[misc]
        ),
        "node agents",
        "1 of 2 GPU nodes have no ready agent: n2",
    ),
    "an untrusted node": (
        lambda: replace(HEALTHY, facts=some_facts("no agent is heard")),
        "trusted capacity",
        "n1: no agent is heard",
    ),
    "a broken GPU": (
        lambda: replace(HEALTHY, facts=some_facts(health=GpuHealth.UNHEALTHY)),
        "GPU health",
        "n1 GPU 0 is unhealthy: XID 79",
    ),
    "no delivery": (lambda: replace(HEALTHY, facts=some_facts(delivery=Delivery.NONE)), "delivery", "on n1"),
    "delivery by environment": (
        lambda: replace(HEALTHY, facts=some_facts(delivery=Delivery.ENV)),
        "delivery",
        "by environment",
    ),
    "a webhook without CA": (
        lambda: replace(HEALTHY, webhooks=(a_webhook(""), VALIDATING)),
        "webhooks",
        "no CA bundle",
    ),
    "a webhook with the CA of somebody else": (
        lambda: replace(HEALTHY, webhooks=(a_webhook(bundle_of(OTHER_AUTHORITY)), VALIDATING)),
        "webhooks",
        "trusts another authority than the webhook's for pods.gpuloom.dev",
    ),
    "a webhook with a CA that is none": (
        lambda: replace(HEALTHY, webhooks=(a_webhook("Q0E="), VALIDATING)),
        "webhooks",
        "trusts another authority",
    ),
    "a policy that only warns": (
        lambda: replace(HEALTHY, admission_bindings=(*ADMISSION[:1], only_warning(ADMISSION[1]))),
        "admission policies",
        "runtime-classes",
    ),
    "one kind of webhook is not registered": (
        lambda: replace(HEALTHY, webhooks=(a_webhook(),)),
        "webhooks",
        "no ValidatingWebhookConfiguration",
    ),
    "a webhook that runs, and nobody asks": (
        lambda: replace(
            HEALTHY, webhooks=(), deployments=(a_deployment("webhook"),), pods=(*PODS, a_pod("webhook"))
        ),
        "webhooks",
        "no MutatingWebhookConfiguration and no ValidatingWebhookConfiguration",
    ),
    "no webhook at all": (lambda: replace(HEALTHY, webhooks=()), "webhooks", "none is registered"),
    "a policy that nothing binds": (
        lambda: replace(HEALTHY, admission_bindings=ADMISSION[:1]),
        "admission policies",
        "runtime-classes",
    ),
    "a right that is missing": (
        lambda: replace(
            HEALTHY, rights=(Right("discovery", "account", "patch", "nodes/status", allowed=False),)
        ),
        "rights",
        "discovery (account) may not patch nodes/status",
    ),
    "a certificate that ended": (
        lambda: replace(HEALTHY, certificates=(a_certificate(-timedelta(hours=1)),)),
        "certificates",
        "x/webhook-tls ended 2026-11-18 11:00",
    ),
    "a certificate that ends soon": (
        lambda: replace(HEALTHY, certificates=(a_certificate(timedelta(days=2)),)),
        "certificates",
        "x/webhook-tls ends 2026-11-20",
    ),
    "a certificate of another authority": (
        lambda: replace(HEALTHY, certificates=(a_certificate(timedelta(days=60), signed=False),)),
        "certificates",
        "not signed by the authority",
    ),
    "a node's clock is ahead": (
        lambda: replace(HEALTHY, node_leases=(a_lease(30),)),
        "clocks",
        "ahead of the API server: n1",
    ),
    "this machine's clock is off": (
        lambda: replace(HEALTHY, server_time=NOW + timedelta(minutes=2)),
        "clocks",
        "-120 s beside",
    ),
    "Prometheus is down": (
        lambda: replace(HEALTHY, prometheus=Prometheus("http://p:9090", "connection refused")),
        "prometheus",
        "connection refused",
    ),
    "Prometheus scrapes no agent": (
        lambda: replace(HEALTHY, prometheus=Prometheus("http://p:9090")),
        "prometheus",
        "has no DCGM_FI_DEV_GPU_UTIL",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_by_its_check_alone_with_what_to_do(fault: str) -> None:
    plant, check, text = FAULTS[fault]

    found = wrong(plant())

    assert [finding.check for finding in found] == [check]
    assert text in found[0].text
    assert found[0].remedy


def test_what_may_not_be_read_is_skipped_with_the_reason_and_never_called_healthy() -> None:
    refused = Unread("may not list")
    blind = Observed(now=NOW, version=refused, definitions=refused, pods=refused, nodes=refused)

    findings = findings_of(blind)

    assert {finding.verdict for finding in findings} == {Verdict.SKIPPED}
    assert "may not list" in {finding.text for finding in findings}


def test_jobs_that_are_over_and_images_by_digest_are_no_other_versions() -> None:
    over = a_pod("certificates", ready=False, tag="0.9")
    over["status"]["phase"] = "Succeeded"
    pinned = a_pod("webhook")
    pinned["spec"]["containers"][0]["image"] = "registry:5000/gpuloom/webhook@sha256:ab"

    assert not wrong(replace(HEALTHY, pods=(*HEALTHY.pods, over, pinned)))  # type: ignore[misc]


def test_every_node_that_gets_an_agent_by_the_chart_is_known_as_one_with_gpus() -> None:
    chart = Path(__file__).parents[3] / "deploy/charts/node-agent/values.yaml"
    affinity = yaml.safe_load(chart.read_text(encoding="utf-8"))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    labels = [
        {one["key"]: (one.get("values") or ["x"])[0]} for term in terms for one in term["matchExpressions"]
    ]

    for label in labels:
        node = {"metadata": {"name": "n2", "labels": label}}
        (found,) = wrong(replace(HEALTHY, nodes=(*HEALTHY.nodes, node)))  # type: ignore[misc]
        assert found.text == "1 of 2 GPU nodes have no ready agent: n2"


def test_the_rights_that_are_looked_at_are_given_by_the_charts_and_none_has_been_forgotten() -> None:
    given = {(right.account, f"{right.verb} {right.resource}") for right in granted() if not right.namespace}
    asked = {
        (f"gpuloom-{service}", f"{verb} {'/'.join(part for part in (group, plural, sub) if part)}")
        for service, wanted in NEEDED_RIGHTS.items()
        for verb, (plural, group, sub) in ((one.split()[0], parts(one.split()[1])) for one in wanted)
    }

    services = {account for account, _ in given} - {
        "gpuloom-scheduler",
        "gpuloom-gpuloom-crds",
        "gpuloom-crds",
    }
    assert asked <= given
    assert {account for account, _ in asked} == services


def parts(resource: str) -> tuple[str, str, str]:
    """Plural, group and subresource, as kubectl writes them together."""
    named, _, subresource = resource.partition("/")
    plural, _, group = named.partition(".")
    return plural, group, subresource


def test_the_summary_counts_failures_and_shows_remedies() -> None:
    lines = list(finding_lines(findings_of(replace(HEALTHY, webhooks=(a_webhook(""), VALIDATING)))))

    assert any("FAIL" in line for line in lines)
    assert any("to do:" in line for line in lines)
    assert lines[-1].endswith("1 failed, 0 warnings")


def test_of_a_run_it_asks_the_processes_and_nothing_that_only_a_cluster_has() -> None:
    run = (
        RunProcess("gpuloom-discovery", "127.0.0.1:1"),
        RunProcess("gpuloom-node-agent", "127.0.0.1:2"),
        RunProcess("gpuloom-node-agent", "127.0.0.1:3", "the kubelet was not heard yet"),
    )
    observed = replace(
        HEALTHY, pods=(), admission_policies=(), admission_bindings=(), certificates=(), run=run
    )

    assert [(f.check, f.text) for f in wrong(observed)] == [
        ("service node-agent", "127.0.0.1:3: the kubelet was not heard yet")
    ]
    assert wrong(replace(observed, run=run[:2])) == []


class Held:
    """Of a client of the Kubernetes API: it has these Secrets, and no others."""

    def __init__(self, secrets: dict[str, dict[str, bytes]]) -> None:
        self._secrets = secrets

    async def get(self, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
        if name not in self._secrets:
            raise NotFoundError(f"secrets {namespace}/{name} is not there")
        data = {entry: base64.b64encode(value).decode() for entry, value in self._secrets[name].items()}
        return {"metadata": {"name": name, "namespace": namespace}, "data": data}


async def test_secrets_that_are_missing_broken_or_of_a_dying_authority_are_told_beside_the_others() -> None:
    good = issue(AUTHORITY, "discovery", NOW, 60)
    dying = new_authority("dying", NOW - timedelta(days=3649))
    held = {
        "good-tls": {"tls.crt": good.certificate_pem(), "ca.crt": AUTHORITY.certificate_pem()},
        "broken-tls": {"tls.crt": b"none", "ca.crt": b""},
        "dying-tls": {
            "tls.crt": issue(dying, "webhook", NOW, 60).certificate_pem(),
            "ca.crt": AUTHORITY.certificate_pem() + dying.certificate_pem(),
        },
    }
    pods = tuple(mounting(name) for name in ("good-tls", "broken-tls", "dying-tls", "lost-tls"))

    certificates = await ClusterReader(cast("KubeClient", Held(held))).certificates(pods)

    assert not isinstance(certificates, Unread)
    told = [finding.text for finding in wrong(replace(HEALTHY, certificates=certificates))]
    assert told == [
        "gpuloom-system/broken-tls can't be read",
        f"gpuloom-system/dying-tls ends {dying.certificate.not_valid_after_utc:%Y-%m-%d %H:%M}",
        "gpuloom-system/lost-tls is not there",
    ]


def mounting(secret: str) -> dict[str, Any]:
    pod = a_pod("discovery")
    return {**pod, "spec": {**pod["spec"], "volumes": [{"name": "tls", "secret": {"secretName": secret}}]}}
