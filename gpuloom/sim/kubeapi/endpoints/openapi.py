"""The least OpenAPI v3 that lets kubectl leave validation to the server. Pure.

It lists each kind's PATCH with its `fieldValidation` parameter and describes no schemas.
"""

from typing import Any

from gpuloom.sim.kubeapi.resources import Registry, Resource

Object = dict[str, Any]


def document(registry: Registry, parts: list[str]) -> Object | None:
    """The document at this path (which begins with openapi/v3), or None if there is none."""
    if parts[:2] != ["openapi", "v3"]:
        return None
    served = {
        _place(group, one): (group, one) for group, ones in registry.group_versions().items() for one in ones
    }
    if len(parts) == 2:
        return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in served}}
    found = served.get("/".join(parts[2:]))
    if found is None:
        return None
    group, version = found
    resources = [one for one in registry if one.group == group and version in one.versions]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": {_path(one, version): {"patch": _patch(one, version)} for one in resources},
        "components": {"schemas": {}},
    }


def _place(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _path(resource: Resource, version: str) -> str:
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"/{_place(resource.group, version)}{scope}/{resource.plural}/{{name}}"


def _patch(resource: Resource, version: str) -> Object:
    return {
        "operationId": f"patch{resource.kind}",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string"}}
            for name in ("dryRun", "fieldValidation")
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "version": version,
            "kind": resource.kind,
        },
    }
