"""Our custom resources, and the manifests that the suites of this folder and of the codec share."""

import copy
from pathlib import Path
from typing import Any

import yaml

from gpuloom.catalog.manifests import definitions
from gpuloom.kube.resources import CUSTOM_RESOURCES

Object = dict[str, Any]

EXAMPLES = Path(__file__).parents[3] / "examples"
COMPLETE = EXAMPLES / "custom-resources"
KINDS = tuple(sorted(one["spec"]["names"]["kind"] for one in definitions()))
DEFINITIONS: dict[str, Object] = {one["spec"]["names"]["kind"]: one for one in definitions()}
RESOURCES = {resource.kind: resource for resource in CUSTOM_RESOURCES}


def documents(file: Path) -> list[Object]:
    return [one for one in yaml.safe_load_all(file.read_text("utf-8")) if one]


FOREIGN = ("argocd/gpuloom.yaml", "inference/hpa.yaml", "inference/keda.yaml")
"""Of kinds that no API server here knows: tests/unit/deploy and tests/unit/autoscaler/inference read them."""


def example_files() -> list[Path]:
    return sorted(
        file for file in EXAMPLES.rglob("*.yaml") if file.relative_to(EXAMPLES).as_posix() not in FOREIGN
    )


def completes(kind: str) -> list[Object]:
    """The example that has every field a user can set; several where fields exclude each other."""
    return documents(COMPLETE / f"{kind.lower()}.yaml")


def complete(kind: str) -> Object:
    return completes(kind)[0]


def minimal(kind: str) -> Object:
    metadata = {"name": "minimal"}
    api_version = RESOURCES[kind].api_version
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": copy.deepcopy(_LEAST[kind]),
    }


def schema_of(kind: str) -> Object:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    schema: Object = version["schema"]["openAPIV3Schema"]
    return schema


def changed(obj: Object, path: str, value: Any) -> Object:
    """A copy with the field at a path such as `spec.nodePools[0].name` set, or removed where it is REMOVE."""
    new = copy.deepcopy(obj)
    *steps, last = path.replace("[", ".[").split(".")
    node: Any = new
    for step in steps:
        node = node[int(step[1:-1])] if step.startswith("[") else node.setdefault(step, {})
    if last.startswith("["):
        node[int(last[1:-1])] = value
    elif value is REMOVE:
        del node[last]
    else:
        node[last] = value
    return new


REMOVE = object()
_LEAST: dict[str, Object] = {
    "GPUWorkload": {"modelName": "llama2", "gpuCount": 1},
    "AutoscalingPolicy": {"provider": "aws", "nodePools": [{"name": "a"}]},
    "AIInferenceAutoscalerPolicy": {
        "targetRef": {"kind": "Deployment", "name": "llm"},
        "maxReplicas": 4,
        "metrics": {"latency": {"targetP99Ms": 100}},
    },
    "CostBudget": {"monthlyLimit": 1000},
    "GPUSharingPolicy": {"strategy": "mps"},
    "GPUNodeConfig": {"nodeName": "n"},
    "GPUHold": {"target": {"nodeName": "n"}, "owner": {"kind": "Pod", "name": "p"}, "reason": "because"},
    "GPUNodeClaim": {
        "policyName": "p",
        "poolName": "a",
        "offering": {"instanceType": "p3.2xlarge", "capacityType": "spot"},
        "expectedGpus": {"model": "V100", "count": 1},
        "token": "t",
    },
    "GPUReservation": {"request": {}, "ttl": "2h"},
}
DEFAULTED: dict[str, Object] = {
    "GPUWorkload": {
        "modelName": "llama2",
        "gpuCount": 1,
        "priority": "medium",
        "schedulingStrategy": "leastLoaded",
        "retryPolicy": {"maxRetries": 3, "backoffSeconds": 30},
    },
    "AutoscalingPolicy": {
        "enabled": True,
        "provider": "aws",
        "scaleUpThreshold": 0.8,
        "scaleDownThreshold": 0.2,
        "scaleUpCooldownSeconds": 180,
        "scaleDownCooldownSeconds": 600,
        "pendingPodTimeoutSeconds": 120,
        "minNodes": 0,
        "maxNodes": 100,
        "spotInstancePercentage": 0.6,
        "enableSpotInstances": True,
        "enableMultiTierScaling": True,
        "enablePredictiveScaling": False,
        "onDemandPercentage": 0.35,
        "reservedPercentage": 0.05,
        "predictive": {
            "lookbackDays": 7,
            "horizonMinutes": 30,
            "confidenceThreshold": 0.7,
            "preWarmThreshold": 0.7,
        },
        "gracefulEviction": True,
        "diversify": True,
        "dryRun": False,
        "nodePools": [{"name": "a", "minSize": 0, "priority": 0}],
    },
    "AIInferenceAutoscalerPolicy": {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
        "minReplicas": 1,
        "maxReplicas": 4,
        "cooldownPeriod": 300,
        "mode": "ratio",
        "metrics": {"latency": {"enabled": True, "targetP99Ms": 100}},
    },
    "CostBudget": {
        "enabled": True,
        "monthlyLimit": 1000,
        "period": "month",
        "alerts": [
            {"name": "soft", "thresholdPercent": 80, "severity": "warning"},
            {"name": "hard", "thresholdPercent": 100, "severity": "critical"},
        ],
        "enforcement": {"action": "alert", "gracePeriodMinutes": 0},
    },
    "GPUSharingPolicy": {"strategy": "mps", "priority": 0},
    "GPUNodeConfig": _LEAST["GPUNodeConfig"],
    "GPUHold": _LEAST["GPUHold"],
    "GPUNodeClaim": _LEAST["GPUNodeClaim"],
    "GPUReservation": {"request": {"gpuCount": 1}, "count": 1, "ttl": "2h"},
}
_CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Fine",
    "message": "",
    "lastTransitionTime": "2026-01-31T09:30:00Z",
}
STATUSES: dict[str, Object] = {
    "GPUWorkload": {
        "phase": "Running",
        "assignedNode": "gpu-node-01",
        "retries": 1,
        "conditions": [_CONDITION],
    },
    "AutoscalingPolicy": {"currentNodes": 3, "utilization": 0.5, "conditions": [_CONDITION]},
    "AIInferenceAutoscalerPolicy": {"currentReplicas": 2, "desiredReplicas": 3},
    "CostBudget": {"spend": "12.5", "forecast": "700.000000001", "state": "OK", "message": "no"},
    "GPUSharingPolicy": {"conditions": [_CONDITION]},
    "GPUNodeConfig": {"gpus": [{"uuid": "GPU-a", "state": "MIGEnabled"}]},
    "GPUHold": {"conditions": [_CONDITION]},
    "GPUNodeClaim": {"state": "Launched", "price": "1.2", "launchedAt": "2026-01-31T09:30:00Z"},
    "GPUReservation": {"state": "Active", "reserved": 2, "nodes": ["n"]},
}
