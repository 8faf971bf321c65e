"""The documents by which clients learn what is served: versions, groups, resources and their verbs. Pure."""

from typing import Any

from gpuloom.sim.kubeapi.endpoints import openapi
from gpuloom.sim.kubeapi.resources import Registry, Resource

Object = dict[str, Any]

VERSION: Object = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.4+gpuloom-sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "sim",
}
_CORE_VERSIONS: Object = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_WRITABLE = ["get", "patch", "update"]


def document(registry: Registry, parts: list[str]) -> Object | None:
    """The discovery document at this path, or None if there is none."""
    if parts[:1] == ["openapi"]:
        return openapi.document(registry, parts)
    if parts in (["version"], ["api"]):
        return VERSION if parts == ["version"] else _CORE_VERSIONS
    if parts == ["apis"]:
        groups = [_group(name, versions) for name, versions in registry.group_versions().items() if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if parts[:1] == ["apis"] and len(parts) == 2:
        versions = registry.group_versions().get(parts[1])
        return {"apiVersion": "v1", **_group(parts[1], versions), "kind": "APIGroup"} if versions else None
    return _resource_list(registry, parts)


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(registry: Registry, parts: list[str]) -> Object | None:
    group, version = _group_version(parts)
    if version not in registry.group_versions().get(group, ()):
        return None
    served = [one for one in registry if one.group == group and version in one.versions]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [entry for resource in served for entry in _entries(resource)],
    }


def _group_version(parts: list[str]) -> tuple[str, str]:
    if parts[:1] == ["apis"] and len(parts) == 3:
        return parts[1], parts[2]
    return ("", parts[1]) if parts[:1] == ["api"] and len(parts) == 2 else ("", "")


def _entries(resource: Resource) -> list[Object]:
    main: Object = {
        **_entry(resource, resource.plural, resource.kind, _VERBS),
        "singularName": resource.kind.lower(),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.key in ("pods", "services", "deployments.apps", "statefulsets.apps", "jobs.batch"):
        main["categories"] = ["all"]
    if resource.categories:
        main["categories"] = list(resource.categories)
    entries = [main]
    if resource.has_status:
        entries.append(_entry(resource, f"{resource.plural}/status", resource.kind, _WRITABLE))
    if resource.scale is not None:
        scale = _entry(resource, f"{resource.plural}/scale", "Scale", _WRITABLE)
        entries.append({**scale, "group": "autoscaling", "version": "v1"})
    if resource.key == "pods":
        entries.append(_entry(resource, "pods/binding", "Binding", ["create"]))
        eviction = _entry(resource, "pods/eviction", "Eviction", ["create"])
        entries.append({**eviction, "group": "policy", "version": "v1"})
    return entries


def _entry(resource: Resource, name: str, kind: str, verbs: list[str]) -> Object:
    return {"name": name, "singularName": "", "namespaced": resource.namespaced, "kind": kind, "verbs": verbs}
