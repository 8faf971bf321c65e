"""What the API server fills into workloads, and which ones it refuses. Pure; pods come from controllers.

Pod templates are left as they are given: pods get their defaults when they are made.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuloom.sim.kubeapi.selectors import Selector, label_query
from gpuloom.sim.kubeapi.status import FieldProblem

Object = dict[str, Any]

JOB_KEY = "jobs.batch"
SELECTED_KEYS = frozenset({"deployments.apps", "replicasets.apps", "statefulsets.apps"})
_JOB_NAME, _JOB_UID = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
_OLD_JOB_NAME, _OLD_JOB_UID = "job-name", "controller-uid"
_ROLLING: Object = {"maxSurge": "25%", "maxUnavailable": "25%"}
_DEFAULTS: Mapping[str, Object] = {
    "deployments.apps": {
        "replicas": 1,
        "strategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
    },
    "replicasets.apps": {"replicas": 1},
    "statefulsets.apps": {
        "replicas": 1,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "revisionHistoryLimit": 10,
    },
    JOB_KEY: {
        "parallelism": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    },
}


def with_workload_defaults(key: str, obj: Object) -> Object:
    """`key` is the resource's; any other kind passes as it is."""
    if key not in _DEFAULTS:
        return obj
    given = {name: value for name, value in (obj.get("spec") or {}).items() if value is not None}
    spec = {**_DEFAULTS[key], **given}
    if key == "deployments.apps":
        spec["strategy"] = _rolling(spec["strategy"])
    if key == JOB_KEY:
        if "completions" not in given and "parallelism" not in given:
            spec["completions"] = 1
        if "selector" not in given and not spec["manualSelector"]:
            spec |= _generated_selector(obj, spec)
    return {**obj, "spec": spec}


def workload_problems(key: str, obj: Object) -> Iterator[FieldProblem]:
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    if key in SELECTED_KEYS or key == JOB_KEY:
        if not template:
            yield FieldProblem("spec.template", "Required value", "FieldValueRequired")
            return
        yield from _selector_problems(spec, template)
        for field in ("replicas", "parallelism", "completions", "backoffLimit"):
            if (spec.get(field) or 0) < 0:
                message = f"Invalid value: {spec[field]}: must be greater than or equal to 0"
                yield FieldProblem(f"spec.{field}", message)
    if key == JOB_KEY:
        yield from _job_problems(spec, template)


def _selector_problems(spec: Object, template: Object) -> Iterator[FieldProblem]:
    selector = spec.get("selector")
    if not selector:
        yield FieldProblem("spec.selector", "Required value", "FieldValueRequired")
    elif not Selector(label_query(selector)).matches({"metadata": template.get("metadata") or {}}):
        labels = (template.get("metadata") or {}).get("labels") or {}
        message = f"Invalid value: {labels}: `selector` does not match template `labels`"
        yield FieldProblem("spec.template.metadata.labels", message)


def _job_problems(spec: Object, template: Object) -> Iterator[FieldProblem]:
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy not in ("Never", "OnFailure"):
        place = "spec.template.spec.restartPolicy"
        message = f'Unsupported value: "{policy or "Always"}": supported values: "OnFailure", "Never"'
        yield FieldProblem(place, message, "FieldValueNotSupported")
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        message = "Required value: when completion mode is Indexed"
        yield FieldProblem("spec.completions", message, "FieldValueRequired")


def _rolling(strategy: Object) -> Object:
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return strategy
    return {"type": "RollingUpdate", "rollingUpdate": {**_ROLLING, **(strategy.get("rollingUpdate") or {})}}


def _generated_selector(job: Object, spec: Object) -> Object:
    """Every Job selects its pods by its own UID, and labels them with it."""
    uid, name = job["metadata"].get("uid", ""), job["metadata"].get("name", "")
    template = spec.get("template") or {}
    metadata = template.get("metadata") or {}
    labels = {
        **(metadata.get("labels") or {}),
        _JOB_NAME: name,
        _OLD_JOB_NAME: name,
        _JOB_UID: uid,
        _OLD_JOB_UID: uid,
    }
    return {
        "selector": {"matchLabels": {_JOB_UID: uid}},
        "template": {**template, "metadata": {**metadata, "labels": labels}} if template else template,
    }
