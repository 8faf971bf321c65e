"""Wrong manifests of every kind: what is changed in the complete example, and which field is then named.

`by` says who must see it: a VALUE is wrong by itself, a RULE is about several fields.
"""

from dataclasses import dataclass
from typing import Any

from tests.contract.crds.manifests import REMOVE

VALUE, RULE = "value", "rule"
REQUIRED, ENUM, TYPE = "FieldValueRequired", "FieldValueNotSupported", "FieldValueTypeInvalid"
INVALID, LONG, MANY = "FieldValueInvalid", "FieldValueTooLong", "FieldValueTooMany"
TWICE = "FieldValueDuplicate"


@dataclass(frozen=True)
class Wrong:
    kind: str
    path: str
    value: Any
    reason: str
    by: str = VALUE
    field: str = ""
    """The field that is named, if not the one that was changed."""

    @property
    def named(self) -> str:
        return self.field or self.path

    def __str__(self) -> str:
        value = "absent" if self.value is REMOVE else str(self.value)[:24]
        return f"{self.kind}:{self.path}={value}"


def _of(kind: str, *rows: tuple[Any, ...]) -> tuple[str, list[Wrong]]:
    return kind, [Wrong(kind, *row) for row in rows]


WRONG: dict[str, list[Wrong]] = dict(
    [
        _of(
            "GPUWorkload",
            ("spec", REMOVE, REQUIRED),
            ("spec.modelName", REMOVE, REQUIRED),
            ("spec.modelName", "", INVALID),
            ("spec.modelName", "x" * 254, LONG),
            ("spec.modelName", 7, TYPE),
            ("spec.gpuCount", REMOVE, REQUIRED),
            ("spec.gpuCount", 0, INVALID),
            ("spec.gpuCount", 65, INVALID),
            ("spec.gpuCount", "two", TYPE),
            ("spec.gpuCount", True, TYPE),
            ("spec.priority", "urgent", ENUM),
            ("spec.schedulingStrategy", "a b", INVALID),
            ("spec.retryPolicy.maxRetries", -1, INVALID),
            ("spec.retryPolicy.backoffSeconds", 0, INVALID),
            ("spec.architecture", "ampere\n", INVALID),
            ("spec.migProfile", "1g", INVALID),
            ("spec.topologyPreference", "mesh", ENUM),
            ("spec.gang", {}, REQUIRED, VALUE, "spec.gang.size"),
            ("spec.gang.size", 1, INVALID),
            ("spec.sharing", "always", ENUM),
            ("spec.podTemplate", "a pod", TYPE),
            ("spec.migProfile", "1g.5gb", INVALID, RULE, "spec.gpuMemoryMib"),
            ("spec.sharing", "mps", INVALID, RULE, "spec.gpuCount"),
        ),
        _of(
            "AutoscalingPolicy",
            ("spec.provider", REMOVE, REQUIRED),
            ("spec.provider", "mainframe", ENUM),
            ("spec.enabled", "yes", TYPE),
            ("spec.scaleUpThreshold", 1.5, INVALID),
            ("spec.scaleUpThreshold", "0.8", TYPE),
            ("spec.scaleUpCooldownSeconds", -1, INVALID),
            ("spec.spotInstancePercentage", 60, INVALID),
            ("spec.predictive.lookbackDays", 0, INVALID),
            ("spec.customMetrics[0].prometheusQuery", "", INVALID),
            ("spec.customMetrics[0].threshold", REMOVE, REQUIRED),
            ("spec.nodePools[0].name", REMOVE, REQUIRED),
            ("spec.nodePools[0].capacityType", "preemptible", ENUM),
            ("spec.nodePools[0].instanceTypes[0]", 7, TYPE),
            ("spec.nodePools[0].labels", {"a": 1}, TYPE, VALUE, "spec.nodePools[0].labels.a"),
            ("spec.nodePools", [{"name": f"p{n}"} for n in range(51)], MANY),
            ("spec.nodePools", [{"name": "a"}, {"name": "a"}], TWICE, VALUE, "spec.nodePools[1]"),
            ("spec.minNodes", 21, INVALID, RULE),
            ("spec.scaleDownThreshold", 0.7, INVALID, RULE),
            ("spec.nodePools[0].minSize", 9, INVALID, RULE),
            (
                "spec.nodePools[0].capacityType",
                "on-demand",
                INVALID,
                RULE,
                "spec.nodePools[0].spotPercentage",
            ),
        ),
        _of(
            "AIInferenceAutoscalerPolicy",
            ("spec.targetRef", REMOVE, REQUIRED),
            ("spec.targetRef.kind", "deployments", INVALID),
            ("spec.maxReplicas", REMOVE, REQUIRED),
            ("spec.maxReplicas", 0, INVALID),
            ("spec.cooldownPeriod", "5m", TYPE),
            ("spec.mode", "guess", ENUM),
            ("spec.metrics.server", "guess", ENUM),
            ("spec.adaptive.requestsPerReplica", 0, INVALID),
            ("spec.metrics.latency.targetP99Ms", 0, INVALID),
            ("spec.metrics.gpuUtilization.targetPercentage", 101, INVALID),
            ("spec.metrics.custom[0].target", 0, INVALID),
            ("spec.scaleUp.policies[0].type", "Nodes", ENUM),
            ("spec.scaleUp.policies[0].periodSeconds", 0, INVALID),
            ("spec.minReplicas", 21, INVALID, RULE),
            ("spec.metrics.latency.targetP95Ms", 300, INVALID, RULE),
            (
                "spec.metrics.requestQueueDepth.targetDepth",
                REMOVE,
                INVALID,
                RULE,
                "spec.metrics.requestQueueDepth",
            ),
            ("spec.metrics", {}, INVALID, RULE),
            ("spec.metrics", {"gpuMemory": {"enabled": False}}, INVALID, RULE),
        ),
        _of(
            "CostBudget",
            ("spec.monthlyLimit", REMOVE, REQUIRED),
            ("spec.monthlyLimit", 0, INVALID),
            ("spec.monthlyLimit", "10000", TYPE),
            ("spec.period", "year", ENUM),
            ("spec.alerts[0].thresholdPercent", 0, INVALID),
            ("spec.alerts[0].severity", "fatal", ENUM),
            ("spec.alerts[0].name", "so\0ft", INVALID),
            ("spec.alerts[0].channels[0].config.channel", "#lab\0", INVALID),
            ("spec.alerts[0].channels[0].type", "pager", ENUM),
            ("spec.alerts[1].name", "soft", TWICE, VALUE, "spec.alerts[1]"),
            ("spec.scope.namespaces", ["a", "a"], TWICE, VALUE, "spec.scope.namespaces[1]"),
            ("spec.enforcement.action", "delete", ENUM),
            ("spec.enforcement.gracePeriodMinutes", -5, INVALID),
        ),
        _of(
            "GPUSharingPolicy",
            ("spec.strategy", REMOVE, REQUIRED),
            ("spec.strategy", "vgpu", ENUM),
            ("spec.migConfig.profile", "half", INVALID),
            ("spec.podSelector.matchExpressions[0].operator", "Gt", ENUM),
            (
                "spec.podSelector.matchExpressions[0].values",
                REMOVE,
                INVALID,
                RULE,
                "spec.podSelector.matchExpressions[0].values",
            ),
            ("spec.migConfig.autoSelectProfile", True, INVALID, RULE, "spec.migConfig.profile"),
            ("spec.migConfig.profile", REMOVE, INVALID, RULE),
            ("spec.mpsConfig", {}, INVALID, RULE),
            ("spec.timeSlicingConfig", {"replicasPerGPU": 2}, INVALID, RULE),
            (
                "spec.timeSlicingConfig",
                {"replicasPerGPU": 1},
                INVALID,
                VALUE,
                "spec.timeSlicingConfig.replicasPerGPU",
            ),
        ),
        _of(
            "GPUNodeConfig",
            ("spec.nodeName", REMOVE, REQUIRED),
            ("spec.nodeName", "", INVALID),
            ("spec.migProfiles[1]", "2x", INVALID),
            ("spec.mpsMaxClients", 61, INVALID),
            ("spec.timeSlicingReplicas", 1, INVALID),
            ("spec.migEnabled", False, INVALID, RULE, "spec.migProfiles"),
            ("spec.mpsEnabled", False, INVALID, RULE, "spec.mpsMaxClients"),
            ("spec.timeSlicingReplicas", 2, INVALID, RULE),
        ),
        _of(
            "GPUHold",
            ("spec.target", REMOVE, REQUIRED),
            ("spec.owner.name", REMOVE, REQUIRED),
            ("spec.reason", "", INVALID),
            ("spec.expiresAt", "tomorrow", TYPE),
            ("spec.target.migStart", 64, INVALID),
            ("spec.target.migStart", REMOVE, INVALID, RULE),
            ("spec.target.gpuUUID", REMOVE, INVALID, RULE),
        ),
        _of(
            "GPUNodeClaim",
            ("spec.offering", REMOVE, REQUIRED),
            ("spec.offering.capacityType", "cheap", ENUM),
            ("spec.expectedGpus.count", 0, INVALID),
            ("spec.token", "", INVALID),
        ),
        _of(
            "GPUReservation",
            ("spec.request", REMOVE, REQUIRED),
            ("spec.request.gpuCount", 0, INVALID),
            ("spec.count", 1001, INVALID),
            ("spec.from", "2030-05-01", TYPE),
            ("spec.ttl", "soon", INVALID),
            ("spec.until", REMOVE, INVALID, RULE),
            ("spec.ttl", "2h", INVALID, RULE, "spec.until"),
            ("spec.from", "2030-05-01T18:00:00Z", INVALID, RULE),
            ("spec.request.migProfile", "1g.5gb", INVALID, RULE, "spec.request.gpuMemoryMib"),
        ),
    ]
)
