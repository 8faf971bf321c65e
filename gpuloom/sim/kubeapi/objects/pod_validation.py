"""Which pods, and which changes of a pod, the API refuses. Pure; returns problems and never raises."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuloom.sim.kubeapi.objects.quantities import parse_quantity
from gpuloom.sim.kubeapi.selectors import is_qualified_name
from gpuloom.sim.kubeapi.status import FieldProblem

Object = dict[str, Any]

_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_RESTART_POLICIES = frozenset({"Always", "OnFailure", "Never"})
_MUTABLE = frozenset(
    {"activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "initContainers"}
)


def new_pod_problems(pod: Object) -> Iterator[FieldProblem]:
    spec = pod["spec"]
    if not spec.get("containers"):
        yield FieldProblem("spec.containers", "Required value", "FieldValueRequired")
    if spec["restartPolicy"] not in _RESTART_POLICIES:
        yield FieldProblem("spec.restartPolicy", f'Unsupported value: "{spec["restartPolicy"]}"')
    if spec["terminationGracePeriodSeconds"] < 0:
        yield FieldProblem("spec.terminationGracePeriodSeconds", "Invalid value: must be at least 0")
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            place = f"spec.{field}[{index}]"
            yield from _container_problems(place, container)
            if container.get("name") in seen:
                yield FieldProblem(
                    f"{place}.name", f'Duplicate value: "{container["name"]}"', "FieldValueDuplicate"
                )
            seen.add(container.get("name", ""))


def changed_pod_problems(old: Object, new: Object) -> Iterator[FieldProblem]:
    """A pod's spec is fixed but for images, a deadline, further tolerations and the removal of gates."""
    old_spec, new_spec = old["spec"], new.get("spec") or {}
    if old_spec == new_spec:
        return
    if not _same_but_for_mutable(old_spec, new_spec):
        yield FieldProblem(
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            " `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`"
            " (only additions to existing tolerations)",
            "FieldValueForbidden",
        )
    missing = [
        one for one in old_spec.get("tolerations") or () if one not in (new_spec.get("tolerations") or ())
    ]
    if missing:
        message = "Forbidden: existing toleration can not be modified except its tolerationSeconds"
        yield FieldProblem("spec.tolerations", message, "FieldValueForbidden")
    gates = [
        one for one in new_spec.get("schedulingGates") or () if one not in old_spec.get("schedulingGates", ())
    ]
    if gates:
        message = "Forbidden: only deletion is allowed"
        yield FieldProblem("spec.schedulingGates", message, "FieldValueForbidden")


def quantity_problems(place: str, amounts: Any) -> Iterator[FieldProblem]:
    """Amounts must be quantities, not negative, and whole for resources that can't be divided."""
    if amounts is None:
        return
    if not isinstance(amounts, Mapping):
        yield FieldProblem(place, "Invalid value: must be an object")
        return
    for name, text in amounts.items():
        amount = parse_quantity(text)
        if amount is None:
            yield FieldProblem(f"{place}[{name}]", f'Invalid value: "{text}": must be a quantity')
        elif amount < 0:
            yield FieldProblem(f"{place}[{name}]", f'Invalid value: "{text}": must be at least 0')
        elif is_extended(name) and amount.denominator != 1:
            yield FieldProblem(f"{place}[{name}]", f'Invalid value: "{text}": must be an integer')


def is_extended(resource_name: str) -> bool:
    """Extended resources (GPUs and the like) have a domain that is not Kubernetes' own."""
    domain, slash, _ = resource_name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _container_problems(place: str, container: Object) -> Iterator[FieldProblem]:
    name = container.get("name") or ""
    if not name:
        yield FieldProblem(f"{place}.name", "Required value", "FieldValueRequired")
    elif not _DNS_LABEL.fullmatch(name):
        yield FieldProblem(f"{place}.name", f'Invalid value: "{name}": must be a lower case RFC 1123 label')
    if not (container.get("image") or "").strip():
        yield FieldProblem(f"{place}.image", "Required value", "FieldValueRequired")
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        yield from _resource_name_problems(f"{place}.resources.{field}", amounts)
        yield from quantity_problems(f"{place}.resources.{field}", amounts)
    for resource_name, text in requests.items():
        yield from _request_problems(f"{place}.resources", resource_name, text, limits.get(resource_name))


def _resource_name_problems(place: str, amounts: Object) -> Iterator[FieldProblem]:
    for name in amounts:
        known = name in _STANDARD or name.startswith("hugepages-")
        if not known and ("/" not in name or not is_qualified_name(name)):
            message = f'Invalid value: "{name}": must be a standard resource for containers'
            yield FieldProblem(f"{place}[{name}]", message)


def _request_problems(place: str, name: str, request: Any, limit: Any) -> Iterator[FieldProblem]:
    wanted, most = parse_quantity(request), parse_quantity(limit)
    if limit is None:
        if is_extended(name):
            message = "Required value: Limit must be set for non overcommitable resources"
            yield FieldProblem(f"{place}.limits", message, "FieldValueRequired")
        return
    if wanted is None or most is None or wanted == most:
        return
    if is_extended(name):
        message = f'Invalid value: "{request}": must be equal to {name} limit of {limit}'
        yield FieldProblem(f"{place}.requests", message)
    elif wanted > most:
        message = f'Invalid value: "{request}": must be less than or equal to {name} limit of {limit}'
        yield FieldProblem(f"{place}.requests", message)


def _same_but_for_mutable(old: Object, new: Object) -> bool:
    names = (set(old) | set(new)) - _MUTABLE
    if any(old.get(name) != new.get(name) for name in names):
        return False
    return all(
        _without_images(old.get(field)) == _without_images(new.get(field))
        for field in ("containers", "initContainers")
    )


def _without_images(containers: list[Object] | None) -> list[Object]:
    return [{**container, "image": ""} for container in containers or ()]
