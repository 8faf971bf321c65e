"""What a request asks for: its path as a target, its query as options. Pure; refuses what makes no sense."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from gpuloom.sim.kubeapi.resources import Registry, Resource
from gpuloom.sim.kubeapi.selectors import FieldTerm, Selector, parse_selector
from gpuloom.sim.kubeapi.status import FieldProblem, bad_request, invalid, unknown_path
from gpuloom.sim.kubeapi.storage.paging import ListQuery
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|us|µs|ns|m|s))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_MAX_WHOLE_DIGITS = 18

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The collection, object or subresource that a path names."""

    resource: Resource
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """`force` takes over fields that others own."""

    manager: str
    force: bool


def path_parts(raw_path: str) -> list[str]:
    """The path's parts, decoded one by one so that an encoded slash stays within its part."""
    return [unquote(part) for part in raw_path.split("?", 1)[0].split("/") if part]


def find_target(registry: Registry, parts: list[str]) -> Target:
    """Raise 404 for a path that names nothing this server serves."""
    group, version, rest = _group_version(parts)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise unknown_path()
    resource = registry.find(group, version, rest[0])
    if resource is None or (namespace and not resource.namespaced):
        raise unknown_path()
    name, subresource = (*rest[1:], "", "")[:2]
    if name and resource.namespaced and not namespace:
        raise unknown_path()
    return Target(resource, version, namespace, name, subresource)


def list_query(target: Target, query: Query) -> ListQuery:
    at_version = None
    if query.get("resourceVersionMatch") == "Exact":
        at_version = whole_number(query, "resourceVersion")
        if at_version is None:
            raise bad_request("resourceVersionMatch=Exact needs a resourceVersion")
    return ListQuery(
        namespace=target.namespace,
        selector=selector(target, query),
        limit=whole_number(query, "limit") or 0,
        continue_token=query.get("continue", ""),
        at_version=at_version,
    )


def selector(target: Target, query: Query) -> Selector:
    """The selectors of the query. A name in the path selects that object (a watch of a single one)."""
    chosen = parse_selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
    if not target.name:
        return chosen
    return Selector(chosen.labels, (*chosen.fields, FieldTerm(("metadata", "name"), target.name)))


def is_watch(query: Query) -> bool:
    return flag(query, "watch")


def watch_since(query: Query) -> int | None:
    """The version to go on from, or None to begin with the present state. Raise 422 for streamed lists."""
    if "sendInitialEvents" in query:
        why = "Forbidden: sendInitialEvents is not supported by this server"
        problem = FieldProblem("sendInitialEvents", why, "FieldValueForbidden")
        raise invalid("meta.k8s.io", "ListOptions", "", [problem])
    return whole_number(query, "resourceVersion") or None


def delete_options(body: Any, query: Query) -> DeleteOptions:
    """Options of a deletion, from its body or (where the body is silent) its query."""
    if body is None:
        body = {}
    preconditions = body.get("preconditions") or {} if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(preconditions, dict):
        raise bad_request("the request body must be a DeleteOptions object")
    grace_s = body.get("gracePeriodSeconds")
    if grace_s is None and "gracePeriodSeconds" in query:
        grace_s = whole_number(query, "gracePeriodSeconds")
    if grace_s is not None and (not isinstance(grace_s, int) or isinstance(grace_s, bool) or grace_s > 2**31):
        raise bad_request("gracePeriodSeconds must be a whole number")
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    if policy not in ("Background", "Foreground", "Orphan"):
        raise bad_request(f"propagationPolicy {policy!r} is not one of Background, Foreground, Orphan")
    return DeleteOptions(
        grace_s=grace_s,
        uid=str(preconditions.get("uid") or ""),
        resource_version=str(preconditions.get("resourceVersion") or ""),
        orphan=policy == "Orphan" or body.get("orphanDependents") is True,
        dry_run=bool(body.get("dryRun")) or is_dry_run(query),
    )


def is_dry_run(query: Query) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: {value!r}: supported values: "All"')
    return value == "All"


def is_strict(query: Query) -> bool:
    """Whether unknown fields are to be refused (`fieldValidation=Strict`, as kubectl asks)."""
    value = query.get("fieldValidation", "")
    if value not in ("", "Ignore", "Warn", "Strict"):
        raise bad_request(f'fieldValidation: Unsupported value: "{value}"')
    return value == "Strict"


def field_manager(query: Query, user_agent: str) -> str:
    """Who writes: as he says, or by the name of his program."""
    return query.get("fieldManager") or user_agent.partition("/")[0] or "unknown"


def apply_options(query: Query) -> ApplyOptions:
    """Raise 422 if nobody is named who is to own what is applied."""
    manager = query.get("fieldManager", "")
    if not manager:
        problem = FieldProblem(
            "fieldManager", "Required value: is required for apply patch", "FieldValueRequired"
        )
        raise invalid("meta.k8s.io", "PatchOptions", "", [problem])
    return ApplyOptions(manager, flag(query, "force"))


def timeout_s(query: Query) -> float | None:
    """How long the client lets the server try (`?timeout=5s`), or None."""
    text = query.get("timeout", "")
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= _MAX_WHOLE_DIGITS:
        return float(text)
    if not _DURATION.fullmatch(text):
        raise bad_request(f"invalid timeout {text!r}: must be a duration such as 500ms, 5s or 1m30s")
    return sum(float(amount) * _UNIT_S[unit] for amount, unit in _DURATION_PART.findall(text)) or None


def whole_number(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_WHOLE_DIGITS:
        raise bad_request(f"{name}: Invalid value: {text[:64]!r}: must be a whole number of at least 0")
    return int(text)


def flag(query: Query, name: str) -> bool:
    return query.get(name, "").lower() in ("1", "true", "t")


def _group_version(parts: list[str]) -> tuple[str, str, list[str]]:
    if parts[:1] == ["api"] and len(parts) > 2:
        return "", parts[1], parts[2:]
    if parts[:1] == ["apis"] and len(parts) > 3:
        return parts[1], parts[2], parts[3:]
    raise unknown_path()
