"""The metrics that ordinary HorizontalPodAutoscalers and KEDA can scale by: names, queries, documents. Pure.

Names are ours and the same for every inference server. A value that is not known is not in an answer; an
answer with nothing in it is an error to whoever asked, so that he holds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuloom.model.policies import InferenceServer
from services.autoscaler.inference.core import queries
from services.autoscaler.inference.core.queries import Pods
from services.autoscaler.inference.core.readings import Combination

CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
VERSIONS = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
OWNERS = ("pods", "deployments.apps", "statefulsets.apps")
DISCOVERY_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TARGET_LABELS = {"deployment": "Deployment", "statefulset": "StatefulSet"}
"""Labels by which an external metric says whose it is."""

Json = dict[str, Any]
ByPod = Callable[[InferenceServer, Pods], str]


@dataclass(frozen=True, slots=True)
class Metric:
    """`how`: what the values of pods are together."""

    name: str
    by_pod: ByPod
    how: Combination


CATALOGUE = {
    one.name: one
    for one in (
        Metric("gpu_utilization", lambda _, pods: queries.gpu_utilization_by_pod(pods), Combination.MEAN),
        Metric("gpu_memory_utilization", lambda _, pods: queries.gpu_memory_by_pod(pods), Combination.MEAN),
        Metric("requests_waiting", queries.waiting_by_pod, Combination.SUM),
        Metric("requests_running", queries.running_by_pod, Combination.SUM),
        Metric("requests_in_flight", queries.in_flight_by_pod, Combination.SUM),
        Metric("requests_per_second", queries.rate_by_pod, Combination.SUM),
        Metric(
            "latency_p99_ms",
            lambda server, pods: queries.latency_by_pod(server, 0.99, pods),
            Combination.MEAN,
        ),
        Metric(
            "latency_p95_ms",
            lambda server, pods: queries.latency_by_pod(server, 0.95, pods),
            Combination.MEAN,
        ),
    )
}
"""Utilization in percent, latency in milliseconds."""


@dataclass(frozen=True, slots=True)
class Value:
    kind: str
    api_version: str
    name: str
    amount: float


def group_list() -> Json:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(name) for name in VERSIONS]}


def group(name: str) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in VERSIONS[name]]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": listed,
        "preferredVersion": listed[0],
    }


def discovery() -> Json:
    """All groups, versions and metrics in one document, as Kubernetes 1.30 and newer ask for it."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name, "creationTimestamp": None},
                "versions": [
                    {"version": version, "freshness": "Current", "resources": _discovered(name)}
                    for version in versions
                ],
            }
            for name, versions in VERSIONS.items()
        ],
    }


def _discovered(name: str) -> list[Json]:
    def entry(kind: str, **named: Any) -> Json:
        response = {"group": "", "version": "", "kind": kind}
        return {**named, "responseKind": response, "verbs": ["get"]}

    placed = {"scope": "Namespaced", "singularResource": ""}
    if name == EXTERNAL:
        return [entry("ExternalMetricValueList", resource=one, **placed) for one in CATALOGUE]
    metrics = [entry("MetricValueList", subresource=one) for one in CATALOGUE]
    return [entry("MetricValueList", resource=one, subresources=metrics, **placed) for one in OWNERS]


def resources(name: str, version: str) -> Json:
    if name == EXTERNAL:
        kind, names = "ExternalMetricValueList", list(CATALOGUE)
    else:
        kind = "MetricValueList"
        names = [f"{owner}/{metric}" for owner in OWNERS for metric in CATALOGUE]
    entries = [
        {"name": one, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]} for one in names
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}",
        "resources": entries,
    }


def custom_values(version: str, namespace: str, metric: str, found: Sequence[Value], now: datetime) -> Json:
    items = []
    for one in found:
        named = {"metricName": metric} if version == "v1beta1" else {"metric": {"name": metric}}
        described = {
            "kind": one.kind,
            "apiVersion": one.api_version,
            "namespace": namespace,
            "name": one.name,
        }
        items.append(
            {"describedObject": described, **named, "timestamp": _time(now), "value": quantity(one.amount)}
        )
    return {
        "kind": "MetricValueList",
        "apiVersion": f"{CUSTOM}/{version}",
        "metadata": {},
        "items": items,
    }


def external_values(metric: str, labels: Mapping[str, str], amount: float, now: datetime) -> Json:
    item = {
        "metricName": metric,
        "metricLabels": dict(labels),
        "timestamp": _time(now),
        "value": quantity(amount),
    }
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{EXTERNAL}/v1beta1",
        "metadata": {},
        "items": [item],
    }


def status(code: int, reason: str, message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def quantity(amount: float) -> str:
    """Kubernetes' quantities have no fractions smaller than a thousandth here."""
    milli = round(amount * 1000)
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
