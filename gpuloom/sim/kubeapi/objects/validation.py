"""What the API refuses with 422 and the field's name: metadata of every kind, nodes, budgets, definitions.

Pure. Checks what users rely on, not every rule of the real server; pods have their own module, and custom
resources the schema of their definition.
"""

import re
from collections.abc import Iterator
from typing import Any

from gpuloom.sim.kubeapi.objects.pod_validation import (
    changed_pod_problems,
    new_pod_problems,
    quantity_problems,
)
from gpuloom.sim.kubeapi.objects.workloads import workload_problems
from gpuloom.sim.kubeapi.resources import CRD_KEY, PDB_KEY, Registry, Resource, resource_from_definition
from gpuloom.sim.kubeapi.selectors import (
    DNS_SUBDOMAIN,
    DNS_SUBDOMAIN_LENGTH,
    LABEL_VALUE,
    is_qualified_name,
)
from gpuloom.sim.kubeapi.status import FieldProblem, invalid

Object = dict[str, Any]

DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
MAX_ANNOTATION_BYTES = 256 * 1024
_LABEL_NAMED = frozenset({"namespaces", "services"})
_PERCENTAGE = re.compile(r"\d{1,3}%")
_SELECTOR_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def check_new(registry: Registry, resource: Resource, obj: Object) -> None:
    problems = [*_metadata_problems(resource, obj["metadata"]), *_kind_problems(resource, obj)]
    if resource.key == "pods":
        problems.extend(new_pod_problems(obj))
    if resource.schema is not None:
        problems.extend(resource.schema.problems(obj))
    _refuse(resource, obj, problems)
    _check_definition(registry, resource, obj)


def check_update(registry: Registry, resource: Resource, old: Object, new: Object) -> None:
    problems = [
        *_metadata_problems(resource, new["metadata"]),
        *_finalizer_problems(old["metadata"], new["metadata"]),
        *_kind_problems(resource, new),
    ]
    if resource.key == "pods":
        problems.extend(changed_pod_problems(old, new))
    if resource.schema is not None:
        problems.extend(resource.schema.problems(new))
    _refuse(resource, new, problems)
    _check_definition(registry, resource, new)


def _refuse(resource: Resource, obj: Object, problems: list[FieldProblem]) -> None:
    if problems:
        raise invalid(resource.group, resource.kind, str(obj["metadata"].get("name", "")), problems)


def _check_definition(registry: Registry, resource: Resource, obj: Object) -> None:
    if resource.key == CRD_KEY:
        registry.require_definable(resource_from_definition(obj), obj["metadata"]["name"])


def _metadata_problems(resource: Resource, metadata: Object) -> Iterator[FieldProblem]:
    yield from _name_problems(resource, metadata.get("name", ""))
    for key, value in (metadata.get("labels") or {}).items():
        if not is_qualified_name(key):
            yield FieldProblem("metadata.labels", f'Invalid value: "{key}": must be a qualified name')
        if not LABEL_VALUE.fullmatch(value):
            yield FieldProblem("metadata.labels", f'Invalid value: "{value}": must be a valid label value')
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if not is_qualified_name(key.lower()):
            yield FieldProblem("metadata.annotations", f'Invalid value: "{key}": must be a qualified name')
    if (
        sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        > MAX_ANNOTATION_BYTES
    ):
        message = f"Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes"
        yield FieldProblem("metadata.annotations", message, "FieldValueTooLong")
    for finalizer in metadata.get("finalizers") or ():
        if not is_qualified_name(finalizer):
            yield FieldProblem(
                "metadata.finalizers", f'Invalid value: "{finalizer}": must be a qualified name'
            )
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(field), str) or not owner[field]:
                place = f"metadata.ownerReferences[{index}].{field}"
                yield FieldProblem(place, "Required value", "FieldValueRequired")


def _name_problems(resource: Resource, name: str) -> Iterator[FieldProblem]:
    if not name:
        yield FieldProblem(
            "metadata.name", "Required value: name or generateName is required", "FieldValueRequired"
        )
    elif resource.key in _LABEL_NAMED:
        if not DNS_LABEL.fullmatch(name):
            yield FieldProblem(
                "metadata.name", f'Invalid value: "{name}": must be a lower case RFC 1123 label'
            )
    elif len(name) > DNS_SUBDOMAIN_LENGTH or not DNS_SUBDOMAIN.fullmatch(name):
        yield FieldProblem(
            "metadata.name", f'Invalid value: "{name}": must be a lower case RFC 1123 subdomain'
        )


def _finalizer_problems(old: Object, new: Object) -> Iterator[FieldProblem]:
    added = set(new.get("finalizers") or ()) - set(old.get("finalizers") or ())
    if old.get("deletionTimestamp") and added:
        message = f"Forbidden: no new finalizers can be added if the object is being deleted: {sorted(added)}"
        yield FieldProblem("metadata.finalizers", message, "FieldValueForbidden")


def _kind_problems(resource: Resource, obj: Object) -> Iterator[FieldProblem]:
    if resource.key == "nodes":
        status = obj.get("status") or {}
        for field in ("capacity", "allocatable"):
            yield from quantity_problems(f"status.{field}", status.get(field))
    elif resource.key == PDB_KEY:
        yield from _budget_problems(obj.get("spec") or {})
    elif resource.key == "priorityclasses.scheduling.k8s.io" and "value" not in obj:
        yield FieldProblem("value", "Required value", "FieldValueRequired")
    else:
        yield from workload_problems(resource.key, obj)


def _budget_problems(spec: Object) -> Iterator[FieldProblem]:
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield FieldProblem("spec", "Invalid value: minAvailable and maxUnavailable cannot be both set")
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, str) and (not _PERCENTAGE.fullmatch(value) or int(value[:-1]) > 100):
            yield FieldProblem(
                f"spec.{field}", f'Invalid value: "{value}": must be a whole number or 0% to 100%'
            )
        if isinstance(value, int) and value < 0:
            yield FieldProblem(f"spec.{field}", f"Invalid value: {value}: must be at least 0")
    for index, expression in enumerate((spec.get("selector") or {}).get("matchExpressions") or ()):
        if expression.get("operator") not in _SELECTOR_OPERATORS or not isinstance(
            expression.get("key"), str
        ):
            place = f"spec.selector.matchExpressions[{index}]"
            yield FieldProblem(place, "Invalid value: needs a key and a known operator")
