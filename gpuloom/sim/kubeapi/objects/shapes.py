"""Is an object's JSON of the type its kind needs, where this server looks into it? Pure.

The rest of the package may then index those places without checking; everything else passes as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpuloom.sim.kubeapi.resources import CRD_KEY, PDB_KEY, Resource
from gpuloom.sim.kubeapi.status import ApiError, bad_request

Check = Callable[[Any], bool]


def require_shape(resource: Resource, obj: Any) -> None:
    """Raise 400, naming the place, if the object could not be decoded as its kind."""
    if not isinstance(obj, dict):
        raise bad_request(f"the request body must be a JSON object ({resource.kind})")
    for steps, check in _STEPS.get(resource.key, _STEPS_OF_EVERY_KIND):
        for place, value in _places(obj, steps, ""):
            if not check(value):
                raise _undecodable(resource, place)


def _places(node: Any, steps: Sequence[str], place: str) -> list[tuple[str, Any]]:
    """Every value at a path, where `*` stands for all items of a list; absent and null ones are left out."""
    if node is None:
        return []
    if not steps:
        return [(place, node)]
    step, rest = steps[0], steps[1:]
    if step == "*":
        items = enumerate(node) if isinstance(node, list) else ()
        return [found for index, item in items for found in _places(item, rest, f"{place}[{index}]")]
    if not isinstance(node, dict):
        return [(place, _Misfit)]
    return _places(node.get(step), rest, f"{place}.{step}".lstrip("."))


class _Misfit:
    """Stands where a path could not be followed; no check accepts it."""


def _undecodable(resource: Resource, place: str) -> ApiError:
    return bad_request(
        f"{resource.kind} in version {resource.api_version!r} cannot be handled: bad type at {place}"
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_mapping_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count_or_share(value: Any) -> bool:
    """A whole number, or a percentage as text."""
    return _is_whole(value) or (isinstance(value, str) and value.removesuffix("%").isdecimal())


def _is_whole_or_text(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, str)


_EVERY_KIND: tuple[tuple[str, Check], ...] = (
    ("apiVersion", _is_text),
    ("kind", _is_text),
    ("metadata", _is_mapping),
    ("metadata.name", _is_text),
    ("metadata.generateName", _is_text),
    ("metadata.namespace", _is_text),
    ("metadata.uid", _is_text),
    ("metadata.resourceVersion", _is_text),
    ("metadata.labels", _is_text_map),
    ("metadata.annotations", _is_text_map),
    ("metadata.finalizers", _is_text_list),
    ("metadata.ownerReferences", _is_mapping_list),
)
_SPEC_AND_STATUS: tuple[tuple[str, Check], ...] = (("spec", _is_mapping), ("status", _is_mapping))
_CONTAINERS: tuple[tuple[str, Check], ...] = tuple(
    (f"spec.{containers}{path}", check)
    for containers in ("containers", "initContainers")
    for path, check in (
        ("", _is_mapping_list),
        (".*.name", _is_text),
        (".*.image", _is_text),
        (".*.resources", _is_mapping),
        (".*.resources.limits", _is_mapping),
        (".*.resources.requests", _is_mapping),
    )
)
_POD = (
    *_SPEC_AND_STATUS,
    *_CONTAINERS,
    ("spec.tolerations", _is_mapping_list),
    ("spec.schedulingGates", _is_mapping_list),
    ("spec.nodeName", _is_text),
    ("spec.restartPolicy", _is_text),
    ("spec.priorityClassName", _is_text),
    ("spec.terminationGracePeriodSeconds", _is_whole),
    ("status.phase", _is_text),
    ("status.conditions", _is_mapping_list),
    ("status.containerStatuses", _is_mapping_list),
)
_BUDGET = (
    *_SPEC_AND_STATUS,
    ("spec.minAvailable", _is_whole_or_text),
    ("spec.maxUnavailable", _is_whole_or_text),
    ("spec.selector", _is_mapping),
    ("spec.selector.matchLabels", _is_text_map),
    ("spec.selector.matchExpressions", _is_mapping_list),
    ("spec.selector.matchExpressions.*.values", _is_text_list),
)
_DEFINITION = (
    *_SPEC_AND_STATUS,
    ("spec.names", _is_mapping),
    ("spec.names.shortNames", _is_text_list),
    ("spec.names.categories", _is_text_list),
    ("spec.versions", _is_mapping_list),
    ("spec.versions.*.subresources", _is_mapping),
    ("spec.versions.*.subresources.scale", _is_mapping),
    ("spec.versions.*.additionalPrinterColumns", _is_mapping_list),
    ("spec.versions.*.additionalPrinterColumns.*.priority", _is_whole),
    ("spec.versions.*.schema", _is_mapping),
    ("spec.versions.*.schema.openAPIV3Schema", _is_mapping),
)
_TEMPLATED = (
    *_SPEC_AND_STATUS,
    ("spec.selector", _is_mapping),
    ("spec.selector.matchLabels", _is_text_map),
    ("spec.selector.matchExpressions", _is_mapping_list),
    ("spec.template", _is_mapping),
    ("spec.template.metadata", _is_mapping),
    ("spec.template.metadata.labels", _is_text_map),
    ("spec.template.metadata.annotations", _is_text_map),
    ("spec.template.spec", _is_mapping),
    ("spec.template.spec.containers", _is_mapping_list),
    ("status.conditions", _is_mapping_list),
)
_SCALED = (
    *_TEMPLATED,
    ("spec.replicas", _is_whole),
    ("spec.minReadySeconds", _is_whole),
    ("spec.revisionHistoryLimit", _is_whole),
    ("spec.strategy", _is_mapping),
    ("spec.strategy.rollingUpdate", _is_mapping),
    ("spec.strategy.rollingUpdate.maxSurge", _is_count_or_share),
    ("spec.strategy.rollingUpdate.maxUnavailable", _is_count_or_share),
    ("spec.updateStrategy", _is_mapping),
    ("spec.updateStrategy.rollingUpdate", _is_mapping),
)
_JOB = (
    *_TEMPLATED,
    *(
        (f"spec.{name}", _is_whole)
        for name in (
            *("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"),
            "ttlSecondsAfterFinished",
        )
    ),
    ("status.uncountedTerminatedPods", _is_mapping),
)
_WEBHOOKS = (
    ("webhooks", _is_mapping_list),
    ("webhooks.*.name", _is_text),
    ("webhooks.*.clientConfig", _is_mapping),
    ("webhooks.*.rules", _is_mapping_list),
    ("webhooks.*.matchConditions", _is_mapping_list),
    ("webhooks.*.timeoutSeconds", _is_whole),
    *(
        (f"webhooks.*.{selector}{path}", check)
        for selector in ("namespaceSelector", "objectSelector")
        for path, check in (
            ("", _is_mapping),
            (".matchLabels", _is_text_map),
            (".matchExpressions", _is_mapping_list),
            (".matchExpressions.*.values", _is_text_list),
        )
    ),
)
_BY_KIND: dict[str, tuple[tuple[str, Check], ...]] = {
    "pods": _POD,
    "nodes": (*_SPEC_AND_STATUS, ("status.conditions", _is_mapping_list)),
    "namespaces": _SPEC_AND_STATUS,
    "secrets": (("data", _is_text_map), ("stringData", _is_text_map)),
    "configmaps": (("data", _is_text_map),),
    "deployments.apps": _SCALED,
    "replicasets.apps": _SCALED,
    "statefulsets.apps": _SCALED,
    "jobs.batch": _JOB,
    "replicationcontrollers": (*_SPEC_AND_STATUS, ("spec.replicas", _is_whole)),
    "leases.coordination.k8s.io": (("spec", _is_mapping),),
    "priorityclasses.scheduling.k8s.io": (("value", _is_whole),),
    PDB_KEY: _BUDGET,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    CRD_KEY: _DEFINITION,
}


def _split(checks: Sequence[tuple[str, Check]]) -> tuple[tuple[tuple[str, ...], Check], ...]:
    return tuple((tuple(path.split(".")), check) for path, check in checks)


_STEPS_OF_EVERY_KIND = _split(_EVERY_KIND)
_STEPS = {key: _STEPS_OF_EVERY_KIND + _split(checks) for key, checks in _BY_KIND.items()}
