"""Pods whose node is gone: nobody is left to confirm their end, so they are removed after a while. Pure."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.resources import PODS
from gpuloom.sim.controllers.decision import Delete
from gpuloom.sim.controllers.pods import spec_of

QUARANTINE_S = 40.0
"""So long a node must be gone: it may be registering again."""


@dataclass(frozen=True, slots=True)
class LostPods:
    deletions: tuple[Delete, ...]
    missing_since_s: Mapping[str, float]
    """By name of a node that pods name and that is not there."""


def find_lost_pods(
    pods: Iterable[JsonObject], nodes: Container[str], missing_since_s: Mapping[str, float], now_s: float
) -> LostPods:
    deletions = []
    missing: dict[str, float] = {}
    for pod in pods:
        node = spec_of(pod).get("nodeName") or ""
        if not node or node in nodes:
            continue
        since_s = missing[node] = missing_since_s.get(node, now_s)
        if now_s - since_s >= QUARANTINE_S:
            namespace, name = key_of(pod)
            deletions.append(Delete(PODS, namespace, name, uid_of(pod), force=True))
    return LostPods(tuple(deletions), missing)
