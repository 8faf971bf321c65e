"""The pods of a Job: their names, indexes and the finalizer by which they are counted. Pure."""

from collections.abc import Iterator
from typing import Protocol

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import PODS
from gpuloom.sim.controllers.decision import Create, Patch, patch_object
from gpuloom.sim.controllers.pods import pod_from_template, spec_of

TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
_MOST_CREATED_AT_ONCE = 500


class IndexCounts(Protocol):
    @property
    def active(self) -> tuple[JsonObject, ...]: ...

    @property
    def completed(self) -> frozenset[int] | None: ...


def missing_pods(job: JsonObject, counts: IndexCounts, missing: int) -> Iterator[Create]:
    name = metadata_of(job)["name"]
    tracked: JsonObject = {"finalizers": [TRACKING_FINALIZER]}
    for index in _free_indexes(job, counts, min(missing, _MOST_CREATED_AT_ONCE)):
        if index is None:
            yield Create(PODS, pod_from_template(job, {"generateName": f"{name}-", **tracked}))
            continue
        mark = {COMPLETION_INDEX: str(index)}
        metadata = {"generateName": f"{name}-{index}-", "labels": mark, "annotations": mark, **tracked}
        pod = pod_from_template(job, metadata)
        yield Create(PODS, {**pod, "spec": _indexed_spec(pod["spec"], f"{name}-{index}", index)})


def released_pod(pod: JsonObject) -> Patch:
    kept = [one for one in metadata_of(pod).get("finalizers") or () if one != TRACKING_FINALIZER]
    return patch_object(PODS, pod, {"metadata": {"finalizers": kept or None}})


def is_tracked(pod: JsonObject) -> bool:
    return TRACKING_FINALIZER in (metadata_of(pod).get("finalizers") or ())


def is_indexed(job: JsonObject) -> bool:
    return spec_of(job).get("completionMode") == "Indexed"


def completion_index(pod: JsonObject) -> int | None:
    text = (metadata_of(pod).get("annotations") or {}).get(COMPLETION_INDEX, "")
    return int(text) if text.isdecimal() else None


def _free_indexes(job: JsonObject, counts: IndexCounts, missing: int) -> list[int | None]:
    if counts.completed is None:
        return [None] * missing
    taken = {completion_index(pod) for pod in counts.active} | counts.completed
    free = [index for index in range(int(spec_of(job)["completions"])) if index not in taken]
    return list(free[:missing])


def _indexed_spec(spec: JsonObject, hostname: str, index: int) -> JsonObject:
    variable = {"name": _INDEX_VARIABLE, "value": str(index)}
    containers = [{**one, "env": [*(one.get("env") or ()), variable]} for one in spec.get("containers") or ()]
    return {**spec, "hostname": hostname, "containers": containers}
