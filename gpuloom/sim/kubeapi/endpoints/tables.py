"""Objects as the table that `kubectl get` prints. Pure; never fails on an object, however odd."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from gpuloom.sim.kubeapi.resources import Column, Resource

Object = dict[str, Any]
Cells = Callable[[Object, datetime], list[Any]]

_NODE_ROLE_PREFIX = "node-role.kubernetes.io/"


def table(
    resource: Resource, objs: Sequence[Object], now: datetime, metadata: Object | None = None
) -> Object:
    columns, cells = _layout(resource)
    rows = [
        {
            "cells": cells(obj, now),
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            },
        }
        for obj in objs
    ]
    if metadata is None:
        metadata = {"resourceVersion": objs[0]["metadata"].get("resourceVersion", "")} if objs else {}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(*column) for column in columns],
        "rows": rows,
    }


def age(timestamp: Any, now: datetime) -> str:
    """How long ago, in the one or two units people read: 45s, 3m20s, 5h, 12d."""
    try:
        then = datetime.strptime(str(timestamp), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return "<unknown>"
    seconds = max(0, int((now - then).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _layout(resource: Resource) -> tuple[Sequence[tuple[str, str, int] | tuple[str, str, int, str]], Cells]:
    if resource.key == "pods":
        return _POD_COLUMNS, _pod_cells
    if resource.key == "nodes":
        return _NODE_COLUMNS, _node_cells
    if resource.key == "events":
        return _EVENT_COLUMNS, _event_cells
    shown = resource.columns or (_AGE,)

    def cells(obj: Object, now: datetime) -> list[Any]:
        return [obj["metadata"].get("name", ""), *(_column_value(obj, column, now) for column in shown)]

    return [
        ("Name", "string", 0),
        *((one.name, one.kind, one.priority, one.description) for one in shown),
    ], cells


_AGE = Column("Age", "date", ("metadata", "creationTimestamp"))


_POD_COLUMNS = [
    ("Name", "string", 0),
    ("Ready", "string", 0),
    ("Status", "string", 0),
    ("Restarts", "integer", 0),
    ("Age", "string", 0),
    ("IP", "string", 1),
    ("Node", "string", 1),
]
_NODE_COLUMNS = [
    ("Name", "string", 0),
    ("Status", "string", 0),
    ("Roles", "string", 0),
    ("Age", "string", 0),
    ("Version", "string", 0),
]
_EVENT_COLUMNS = [
    ("Last Seen", "string", 0),
    ("Type", "string", 0),
    ("Reason", "string", 0),
    ("Object", "string", 0),
    ("Message", "string", 0),
    ("Name", "string", 1),
]


def _definition(name: str, kind: str, priority: int, description: str = "") -> Object:
    name_format = "name" if name == "Name" else ""
    return {
        "name": name,
        "type": kind,
        "format": name_format,
        "description": description or name,
        "priority": priority,
    }


def _pod_cells(pod: Object, now: datetime) -> list[Any]:
    spec, status = _part(pod, "spec"), _part(pod, "status")
    statuses = [one for one in status.get("containerStatuses") or () if isinstance(one, dict)]
    ready = sum(one.get("ready") is True for one in statuses)
    restarts = sum(one["restartCount"] for one in statuses if isinstance(one.get("restartCount"), int))
    return [
        pod["metadata"].get("name", ""),
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_status(pod),
        restarts,
        _age_of(pod, now),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
    ]


def _pod_status(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = _part(pod, "status")
    if _part(pod, "spec").get("schedulingGates"):
        return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or "Unknown")


def _node_cells(node: Object, now: datetime) -> list[Any]:
    status = _part(node, "status")
    conditions = [one for one in status.get("conditions") or () if isinstance(one, dict)]
    ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), None)
    text = {"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown")
    if _part(node, "spec").get("unschedulable"):
        text += ",SchedulingDisabled"
    labels = node["metadata"].get("labels") or {}
    roles = sorted(key.removeprefix(_NODE_ROLE_PREFIX) for key in labels if key.startswith(_NODE_ROLE_PREFIX))
    version = _part(status, "nodeInfo").get("kubeletVersion", "")
    return [
        node["metadata"].get("name", ""),
        text,
        ",".join(roles) or "<none>",
        _age_of(node, now),
        version,
    ]


def _event_cells(event: Object, now: datetime) -> list[Any]:
    involved = _part(event, "involvedObject")
    seen = (
        event.get("lastTimestamp")
        or event.get("firstTimestamp")
        or event["metadata"].get("creationTimestamp")
    )
    return [
        age(seen, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        str(event.get("message", "")).strip(),
        event["metadata"].get("name", ""),
    ]


def _column_value(obj: Any, column: Column, now: datetime) -> Any:
    for step in column.path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    if column.kind == "date" and obj is not None:
        return age(obj, now)
    return obj if isinstance(obj, str | int | float | bool | None) else str(obj)


def _age_of(obj: Object, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _part(obj: Object, field: str) -> Object:
    value = obj.get(field)
    return value if isinstance(value, dict) else {}
