"""Filters that look at the pods of other nodes: topology spread, pod affinity and anti-affinity. Pure.

As kube-scheduler does it: pods are counted by topology domain once for the pod that is placed, then every
node is asked. Texts are kube-scheduler's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from gpuloom.model.objects import LabelSelector
from gpuloom.placement.constraints.filters import selects_node, tolerates_node
from gpuloom.placement.constraints.objects import (
    PodTerm,
    SchedulableNode,
    SchedulablePod,
    SpreadConstraint,
)

SPREAD = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL = f"{SPREAD} (missing required label)"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
OTHERS_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

NodePods = tuple[SchedulableNode, Sequence[SchedulablePod]]
Domain = tuple[str, str]
"""A topology key and its value."""


class Neighbours:
    """The pods of a cluster, counted for one pod that is to be placed."""

    def __init__(self, pod: SchedulablePod, nodes: Iterable[NodePods]) -> None:
        self._pod = pod
        listed = tuple(nodes)
        self._spread = [(rule, _spread_counts(rule, pod, listed)) for rule in pod.spread]
        self._affinity = [(term, _matching_domains(term, pod, listed)) for term in pod.affinity]
        self._anti_affinity = [(term, _matching_domains(term, pod, listed)) for term in pod.anti_affinity]
        self._kept_apart = _kept_apart(pod, listed)

    def refusals(self, node: SchedulableNode) -> tuple[str, ...]:
        """Why the pods that are there keep this one away; nothing if they don't."""
        for rule, counts in self._spread:
            reason = self._spread_refusal(rule, counts, node)
            if reason:
                return (reason,)
        if not self._is_near_enough(node):
            return (AFFINITY,)
        for term, domains in self._anti_affinity:
            if _domain(term.topology_key, node) in domains:
                return (ANTI_AFFINITY,)
        if any(_domain(key, node) in self._kept_apart for key in node.labels):
            return (OTHERS_ANTI_AFFINITY,)
        return ()

    def _spread_refusal(self, rule: SpreadConstraint, counts: Counter[str], node: SchedulableNode) -> str:
        value = node.labels.get(rule.topology_key)
        if value is None:
            return SPREAD_LABEL
        least = min(counts.values(), default=0) if len(counts) >= rule.min_domains else 0
        itself = int(_selects(rule.selector, self._pod))
        return SPREAD if counts[value] + itself - least > rule.max_skew else ""

    def _is_near_enough(self, node: SchedulableNode) -> bool:
        if any(term.topology_key not in node.labels for term, _ in self._affinity):
            return False
        if all(_domain(term.topology_key, node) in domains for term, domains in self._affinity):
            return True
        # The first of pods that want to be near each other may go anywhere.
        nobody = not any(domains for _, domains in self._affinity)
        return nobody and all(_applies(term, self._pod, self._pod) for term, _ in self._affinity)


def _spread_counts(rule: SpreadConstraint, pod: SchedulablePod, nodes: Sequence[NodePods]) -> Counter[str]:
    """Matching pods by the value of the topology key; also values that no matching pod has."""
    keys = [other.topology_key for other in pod.spread]
    counts: Counter[str] = Counter()
    for node, pods in nodes:
        if any(key not in node.labels for key in keys):
            continue
        if rule.honors_affinity and not selects_node(pod, node):
            continue
        if rule.honors_taints and not tolerates_node(pod, node):
            continue
        counts[node.labels[rule.topology_key]] += sum(
            other.namespace == pod.namespace and not other.terminating and _selects(rule.selector, other)
            for other in pods
        )
    return counts


def _matching_domains(term: PodTerm, pod: SchedulablePod, nodes: Sequence[NodePods]) -> Counter[Domain]:
    found: Counter[Domain] = Counter()
    for node, pods in nodes:
        domain = _domain(term.topology_key, node)
        if domain is not None and any(_applies(term, pod, other) for other in pods):
            found[domain] += 1
    return found


def _kept_apart(pod: SchedulablePod, nodes: Sequence[NodePods]) -> frozenset[Domain]:
    """Where pods are that do not want this one beside them."""
    found: set[Domain] = set()
    for node, pods in nodes:
        for other in pods:
            for term in other.anti_affinity:
                domain = _domain(term.topology_key, node)
                if domain is not None and _applies(term, other, pod):
                    found.add(domain)
    return frozenset(found)


def _applies(term: PodTerm, owner: SchedulablePod, other: SchedulablePod) -> bool:
    """Whether the term of one pod is about the other. Terms that name no namespace mean their pod's own."""
    if term.namespaces is not None and other.namespace not in (term.namespaces or {owner.namespace}):
        return False
    return _selects(term.selector, other)


def _selects(selector: LabelSelector | None, pod: SchedulablePod) -> bool:
    return selector is not None and selector.matches(pod.labels)


def _domain(key: str, node: SchedulableNode) -> Domain | None:
    value = node.labels.get(key)
    return None if value is None else (key, value)
