"""What the doctor says of a cluster: nothing of a healthy one, and exactly what is wrong of any other."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuloom.cli.doctor.checks import findings_of
from gpuloom.cli.doctor.command import finding_lines
from gpuloom.cli.doctor.findings import Finding, Verdict
from gpuloom.cli.doctor.observed import Certificate, Observed, Prometheus, Right, RunProcess, Unread
from gpuloom.kube.resources import CUSTOM_RESOURCES
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.snapshot import ClusterSnapshot, NodeFacts
from gpuloom.model.version import StreamVersion

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


def a_definition(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Established", "status": "True"}]}}


def a_webhook(bundle: str = "Q0E=") -> dict[str, Any]:
    hook = {"name": "pods.gpuloom.dev", "clientConfig": {"caBundle": bundle}}
    return {
        "kind": "MutatingWebhookConfiguration",
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


def a_lease(ahead_s: float) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"renewTime": (NOW + timedelta(seconds=ahead_s)).isoformat()}}


ADMISSION = policies("gpuloom-allocation-annotations", "gpuloom-runtime-classes")
HEALTHY = Observed(
    now=NOW,
    version=(1, 36),
    server_time=NOW,
    definitions=tuple(a_definition(f"{kind.plural}.{kind.group}") for kind in CUSTOM_RESOURCES),
    priority_classes=tuple({"metadata": {"name": f"gpuloom-{level}"}} for level in ("low", "medium", "high")),
    pods=(a_pod("node-agent"), a_pod("discovery"), a_leader()),
    nodes=({"metadata": {"name": "n1"}, "status": {"capacity": {"gpuloom.dev/gpu-milli": "1000"}}},),
    node_leases=(a_lease(-3),),
    webhooks=(a_webhook(),),
    admission_policies=ADMISSION,
    admission_bindings=ADMISSION,
    certificates=(
        Certificate("gpuloom-system/gpuloom-discovery-tls", NOW + timedelta(days=60), signed=True),
    ),
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
        lambda: replace(HEALTHY, definitions=HEALTHY.definitions[1:]),  # type: ignore[index]
        "custom resources",
        "gpuworkloads.gpu.warp.dev",
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
    "a webhook without CA": (lambda: replace(HEALTHY, webhooks=(a_webhook(""),)), "webhooks", "no CA bundle"),
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
        lambda: replace(HEALTHY, certificates=(Certificate("a", NOW - timedelta(hours=1), signed=True),)),
        "certificates",
        "a ended 2026-11-18 11:00",
    ),
    "a certificate that ends soon": (
        lambda: replace(HEALTHY, certificates=(Certificate("a", NOW + timedelta(days=2), signed=True),)),
        "certificates",
        "a ends 2026-11-20",
    ),
    "a certificate of another authority": (
        lambda: replace(HEALTHY, certificates=(Certificate("a", NOW + timedelta(days=60), signed=False),)),
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


def test_the_summary_counts_failures_and_shows_remedies() -> None:
    lines = list(finding_lines(findings_of(replace(HEALTHY, webhooks=(a_webhook(""),)))))

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
