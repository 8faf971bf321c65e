"""Which resources the API serves: the built-in table, and what custom resource definitions add to it.

Decides names, scope, subresources and columns. Versions of one custom resource differ in nothing but
`apiVersion`: they share the schema of the version that is stored.
Core events and events.k8s.io events are two stores.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpuloom.sim.kubeapi.schema import CustomSchema, SchemaError
from gpuloom.sim.kubeapi.status import ApiError, FieldProblem, invalid

CRD_KEY = "customresourcedefinitions.apiextensions.k8s.io"
PDB_KEY = "poddisruptionbudgets.policy"
EVENT_KEYS = ("events", "events.events.k8s.io")


@dataclass(frozen=True)
class ScalePaths:
    """Where a resource keeps what its scale subresource shows."""

    replicas: tuple[str, ...] = ("spec", "replicas")
    status_replicas: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] = ("spec", "selector")


@dataclass(frozen=True)
class Column:
    """A printer column: shown by `kubectl get`."""

    name: str
    kind: str
    path: tuple[str, ...]
    priority: int = 0
    description: str = ""


@dataclass(frozen=True)
class Resource:
    """One served collection. The first version is the one objects are stored in."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = False
    short_names: tuple[str, ...] = ()
    scale: ScalePaths | None = None
    # Without a resourceVersion a PUT is refused: such kinds are never overwritten blindly.
    guarded: bool = False
    custom: bool = False
    # Of a custom resource; without any it shows its age, with some it shows what they say.
    columns: tuple[Column, ...] = ()
    categories: tuple[str, ...] = ()
    # Without one anything is kept as it is.
    schema: CustomSchema | None = None

    @cached_property
    def key(self) -> str:
        """`plural` or `plural.group`, the name that errors and in-process callers use."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def api_version(self) -> str:
        return self.at(self.versions[0])

    def at(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


class Registry:
    """The resources served right now."""

    def __init__(self) -> None:
        self._by_key = {resource.key: resource for resource in _BUILT_IN}
        self._by_definition: dict[str, Resource] = {}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_key.values())

    def get(self, key: str) -> Resource:
        """Raise 404 for a resource that is not served."""
        resource = self._by_key.get(key)
        if resource is None:
            raise ApiError(404, f"the server could not find the requested resource {key!r}")
        return resource

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        resource = self._by_key.get(f"{plural}.{group}" if group else plural)
        return resource if resource and version in resource.versions else None

    def group_versions(self) -> dict[str, list[str]]:
        """Every group with its versions, in the order in which they became known."""
        groups: dict[str, list[str]] = {}
        for resource in self:
            versions = groups.setdefault(resource.group, [])
            versions.extend(version for version in resource.versions if version not in versions)
        return groups

    def require_definable(self, resource: Resource, definition_name: str) -> None:
        """Raise 422 when a definition would take a name that is already served by something else."""
        current = self._by_key.get(resource.key)
        if current is not None and self._by_definition.get(definition_name) != current:
            problem = FieldProblem("spec.names.plural", f'Invalid value: "{resource.plural}": already in use')
            raise invalid("apiextensions.k8s.io", "CustomResourceDefinition", definition_name, [problem])

    def define(self, definition: Mapping[str, Any]) -> Resource:
        """Serve what the definition says. The same definition again keeps the same Resource instance."""
        name = definition["metadata"]["name"]
        resource = resource_from_definition(definition)
        if self._by_definition.get(name) == resource:
            return self._by_definition[name]
        self.undefine(name)
        self._by_key[resource.key] = resource
        self._by_definition[name] = resource
        return resource

    def undefine(self, definition_name: str) -> None:
        resource = self._by_definition.pop(definition_name, None)
        if resource is not None:
            del self._by_key[resource.key]

    def defined_by(self, definition_name: str) -> Resource | None:
        return self._by_definition.get(definition_name)


def resource_from_definition(definition: Mapping[str, Any]) -> Resource:
    """Raise 422 for a definition that lacks what is needed to serve it."""
    spec = definition.get("spec") or {}
    names = spec.get("names") or {}
    versions = [one for one in spec.get("versions") or () if isinstance(one, dict) and one.get("served")]
    problems = _definition_problems(definition, versions)
    if problems:
        name = str((definition.get("metadata") or {}).get("name", ""))
        raise invalid("apiextensions.k8s.io", "CustomResourceDefinition", name, problems)
    versions.sort(key=lambda one: not one.get("storage"))
    subresources = versions[0].get("subresources") or {}
    return Resource(
        group=spec["group"],
        versions=tuple(one["name"] for one in versions),
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        has_status="status" in subresources,
        short_names=tuple(names.get("shortNames") or ()),
        scale=_scale_paths(subresources.get("scale")),
        guarded=True,
        custom=True,
        columns=tuple(_columns(versions[0].get("additionalPrinterColumns") or ())),
        categories=tuple(names.get("categories") or ()),
        schema=_schema(definition["metadata"]["name"], versions[0]),
    )


def _schema(name: str, version: Mapping[str, Any]) -> CustomSchema | None:
    declared = (version.get("schema") or {}).get("openAPIV3Schema")
    if declared is None:
        return None
    try:
        return CustomSchema.of(declared)
    except SchemaError as error:
        problem = FieldProblem("spec.versions[0].schema.openAPIV3Schema", f"Invalid value: {error}")
        raise invalid("apiextensions.k8s.io", "CustomResourceDefinition", name, [problem]) from None


def _definition_problems(definition: Mapping[str, Any], versions: list[Any]) -> list[FieldProblem]:
    spec = definition.get("spec") or {}
    names = spec.get("names") or {}
    problems = [
        FieldProblem(f"spec.{field}", "Required value", "FieldValueRequired")
        for field, value in (
            ("group", spec.get("group")),
            ("names.plural", names.get("plural")),
            ("names.kind", names.get("kind")),
        )
        if not isinstance(value, str) or not value
    ]
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        problems.append(FieldProblem("spec.scope", 'Unsupported value: must be "Namespaced" or "Cluster"'))
    if not versions or not all(isinstance(one.get("name"), str) and one["name"] for one in versions):
        problems.append(FieldProblem("spec.versions", "must have at least one named, served version"))
    expected = f"{names.get('plural')}.{spec.get('group')}"
    if not problems and definition["metadata"].get("name") != expected:
        problems.append(
            FieldProblem("metadata.name", f'must be spec.names.plural+"."+spec.group: {expected}')
        )
    return problems


def _scale_paths(scale: Mapping[str, Any] | None) -> ScalePaths | None:
    if scale is None:
        return None
    return ScalePaths(
        replicas=_path(scale.get("specReplicasPath") or ".spec.replicas"),
        status_replicas=_path(scale.get("statusReplicasPath") or ".status.replicas"),
        selector=_path(scale.get("labelSelectorPath") or ".status.selector"),
    )


def _columns(declared: Any) -> Iterator[Column]:
    for one in declared:
        path = str(one.get("jsonPath", ""))
        # Filters and wildcards of JSONPath are left out; a plain path covers what printer columns mostly are.
        if path.startswith(".") and not set(path) & set("[]*?()"):
            yield Column(
                str(one.get("name", "")),
                str(one.get("type", "string")),
                _path(path),
                int(one.get("priority") or 0),
                str(
                    one.get("description")
                    or f"Custom resource definition column (in JSONPath format): {path}"
                ),
            )


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.lstrip(".").split("."))


def _core(
    plural: str, kind: str, *short_names: str, namespaced: bool = True, status: bool = False
) -> Resource:
    return Resource("", ("v1",), plural, kind, namespaced, status, short_names)


_WORKLOAD_SCALE = ScalePaths()
_CORE = (
    _core("pods", "Pod", "po", status=True),
    _core("nodes", "Node", "no", namespaced=False, status=True),
    _core("namespaces", "Namespace", "ns", namespaced=False, status=True),
    _core("events", "Event", "ev"),
    _core("configmaps", "ConfigMap", "cm"),
    _core("secrets", "Secret"),
    _core("services", "Service", "svc", status=True),
    _core("endpoints", "Endpoints", "ep"),
    _core("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", status=True),
    _core("serviceaccounts", "ServiceAccount", "sa"),
    Resource(
        "",
        ("v1",),
        "replicationcontrollers",
        "ReplicationController",
        True,
        True,
        ("rc",),
        scale=_WORKLOAD_SCALE,
    ),
)
_APPS = tuple(
    Resource("apps", ("v1",), plural, kind, True, True, (short,), scale=scale)
    for plural, kind, short, scale in (
        ("deployments", "Deployment", "deploy", _WORKLOAD_SCALE),
        ("replicasets", "ReplicaSet", "rs", _WORKLOAD_SCALE),
        ("statefulsets", "StatefulSet", "sts", _WORKLOAD_SCALE),
        ("daemonsets", "DaemonSet", "ds", None),
    )
)
_BUILT_IN: tuple[Resource, ...] = (
    *_CORE,
    *_APPS,
    Resource("batch", ("v1",), "jobs", "Job", True, True),
    Resource("batch", ("v1",), "cronjobs", "CronJob", True, True, ("cj",)),
    Resource("coordination.k8s.io", ("v1",), "leases", "Lease", guarded=True),
    Resource(
        "policy", ("v1",), "poddisruptionbudgets", "PodDisruptionBudget", True, True, ("pdb",), None, True
    ),
    Resource("events.k8s.io", ("v1",), "events", "Event", True, False, ("ev",)),
    Resource("scheduling.k8s.io", ("v1",), "priorityclasses", "PriorityClass", False, False, ("pc",)),
    Resource("storage.k8s.io", ("v1",), "storageclasses", "StorageClass", False, False, ("sc",)),
    Resource("storage.k8s.io", ("v1",), "csinodes", "CSINode", False),
    *(
        Resource("admissionregistration.k8s.io", ("v1",), f"{kind.lower()}s", kind, False)
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    ),
    Resource(
        "apiextensions.k8s.io",
        ("v1",),
        "customresourcedefinitions",
        "CustomResourceDefinition",
        False,
        True,
        ("crd", "crds"),
    ),
)
