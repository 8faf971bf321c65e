"""Pods and nodes as the scheduler sees them, parsed from Kubernetes JSON. Pure.

Amounts are integers: CPU in thousandths, memory in bytes, every other resource in its own unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.parse import quantity_milli, quantity_value

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SchedulablePod:
    """`required_terms` are node selector terms of required affinity: one of them must match, if any."""

    uid: str
    namespace: str
    name: str
    priority: int
    requests: Amounts
    node_selector: Mapping[str, str]
    required_terms: tuple[JsonObject, ...] | None
    tolerations: tuple[JsonObject, ...]
    raw: JsonObject = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    name: str
    labels: Mapping[str, str]
    taints: tuple[JsonObject, ...]
    unschedulable: bool
    allocatable: Amounts


def parse_pod(raw: JsonObject) -> SchedulablePod:
    """Raise ValueError if an amount is not a quantity."""
    spec = raw.get("spec") or {}
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    namespace, name = key_of(raw)
    return SchedulablePod(
        uid=uid_of(raw),
        namespace=namespace,
        name=name,
        priority=int(spec.get("priority") or 0),
        requests=effective_requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        required_terms=None if affinity is None else tuple(affinity.get("nodeSelectorTerms") or ()),
        tolerations=tuple(spec.get("tolerations") or ()),
        raw=raw,
    )


def parse_node(raw: JsonObject) -> SchedulableNode:
    """Raise ValueError if an amount is not a quantity."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    return SchedulableNode(
        name=key_of(raw)[1],
        labels=dict(metadata_of(raw).get("labels") or {}),
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=_amounts(status.get("allocatable") or status.get("capacity") or {}),
    )


def effective_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Containers and sidecars add up; an init container needs its own beside the sidecars before it."""
    running: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(running, container_requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wanted = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            _raise_to(peak, sidecars)
        else:
            alone = dict(sidecars)
            _add(alone, wanted)
            _raise_to(peak, alone)
    _add(running, sidecars)
    _raise_to(running, peak)
    _add(running, _amounts(spec.get("overhead") or {}))
    return {name: amount for name, amount in running.items() if amount > 0}


def container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    """A resource with a limit but no request requests its limit."""
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: quantity_milli(text) if name == CPU else quantity_value(text)
        for name, text in quantities.items()
    }


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, int], floor: Amounts) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)
