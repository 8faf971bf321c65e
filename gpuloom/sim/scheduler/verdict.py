"""Scores and texts of one scheduling try. Pure; randomness is passed in."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpuloom.kube.objects import JsonObject
from gpuloom.placement.constraints.objects import CPU, MEMORY, NodeUse, SchedulableNode, SchedulablePod

MAX_NODE_SCORE = 100
EXTENDER_SCALE = 10


def unschedulable_message(node_count: int, reasons: Iterable[str]) -> str:
    """kube-scheduler's text: equal reasons are counted, and the counted texts sorted."""
    if node_count == 0:
        return "no nodes available to schedule pods"
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    head = f"0/{node_count} nodes are available"
    return f"{head}: {', '.join(counted)}." if counted else f"{head}."


def least_allocated(pod: SchedulablePod, node: SchedulableNode, use: NodeUse) -> int:
    """The free share of CPU and memory after the pod, 0 to 100."""
    shares = []
    for name in (CPU, MEMORY):
        capacity = node.allocatable.get(name, 0)
        free = capacity - use.requested.get(name, 0) - pod.requests.get(name, 0)
        shares.append(max(0, free) * MAX_NODE_SCORE // capacity if capacity else 0)
    return sum(shares) // len(shares)


def total_scores(built_in: Mapping[str, int], extender: Mapping[str, int], weight: int) -> dict[str, int]:
    return {node: score + extender.get(node, 0) * weight * EXTENDER_SCALE for node, score in built_in.items()}


def choose(scores: Mapping[str, int], rng: random.Random) -> str:
    """The best node; ties at random."""
    best = max(scores.values())
    return rng.choice(sorted(node for node, score in scores.items() if score == best))


def pod_scheduled_condition(
    reason: str, message: str, time: str, known: Sequence[JsonObject]
) -> list[JsonObject] | None:
    """The pod's conditions with PodScheduled=False in them, or None if they say so already."""
    wanted = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    others = []
    for condition in known:
        if condition.get("type") != "PodScheduled":
            others.append(condition)
        elif all(condition.get(key) == value for key, value in wanted.items()):
            return None
    return [*others, wanted | {"lastTransitionTime": time}]
