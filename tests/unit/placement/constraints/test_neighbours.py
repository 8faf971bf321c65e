"""Topology spread and pod affinity: what kube-scheduler refuses because of the pods of other nodes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.scheduling import schedulable_node, schedulable_pod
from gpuloom.placement.constraints.neighbours import (
    AFFINITY,
    ANTI_AFFINITY,
    OTHERS_ANTI_AFFINITY,
    SPREAD,
    SPREAD_LABEL,
    Neighbours,
)
from gpuloom.placement.constraints.objects import SchedulableNode, SchedulablePod

ZONE = "topology.kubernetes.io/zone"
Json = dict[str, Any]


def a_node(name: str, zone: str | None, **labels: str) -> SchedulableNode:
    zoned = labels if zone is None else {**labels, ZONE: zone}
    return schedulable_node({"metadata": {"name": name, "labels": zoned}})


def a_pod(spec: Json | None = None, app: str = "web", namespace: str = "default") -> SchedulablePod:
    metadata = {"name": app, "namespace": namespace, "labels": {"app": app, "hash": "1"}}
    return schedulable_pod({"metadata": metadata, "spec": spec or {}})


def spread(max_skew: int = 1, **more: Any) -> Json:
    selector = {"matchLabels": {"app": "web"}}
    rule = {"maxSkew": max_skew, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": selector, **more}]}


def near(kind: str, app: str, **more: Any) -> Json:
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": app}}, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@given(
    placed=st.lists(st.sampled_from("abc"), max_size=12),
    order=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    max_skew=st.integers(1, 3),
)
def test_what_is_let_through_keeps_the_skew_within_its_bound(
    placed: list[str], order: list[str], max_skew: int
) -> None:
    nodes = {zone: a_node(zone, zone) for zone in "abc"}
    pods = Counter(placed)

    for zone in order:
        pod = a_pod(spread(max_skew))
        counted = Neighbours(pod, [(node, (a_pod(),) * pods[name]) for name, node in nodes.items()])
        fits = not counted.refusals(nodes[zone])
        # The rule itself: after it is placed, no domain has more than max_skew above the emptiest.
        assert fits == (pods[zone] + 1 - min(pods[other] for other in "abc") <= max_skew)
        pods[zone] += fits


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ()),
        ({"minDomains": 3}, (SPREAD,)),
        ({"matchLabelKeys": ["hash"]}, ()),
        ({"labelSelector": {"matchLabels": {"app": "other"}}}, ()),
    ],
)
def test_details_of_a_spread_rule(more: Json, expected: tuple[str, ...]) -> None:
    first, second = a_node("n1", "a"), a_node("n2", "b")

    counted = Neighbours(a_pod(spread(**more)), [(first, (a_pod(),)), (second, (a_pod(),))])

    assert counted.refusals(first) == expected


def test_a_node_without_the_label_is_refused_and_counts_nowhere() -> None:
    bare, zoned = a_node("n1", None), a_node("n2", "a")

    counted = Neighbours(a_pod(spread()), [(bare, ()), (zoned, ())])

    assert counted.refusals(bare) == (SPREAD_LABEL,)
    assert counted.refusals(zoned) == ()


def test_nodes_that_the_pod_does_not_select_keep_no_domain_empty() -> None:
    chosen, other = a_node("n1", "a", pool="gpu"), a_node("n2", "b", pool="cpu")
    pod = a_pod(spread() | {"nodeSelector": {"pool": "gpu"}})

    assert Neighbours(pod, [(chosen, (a_pod(),)), (other, ())]).refusals(chosen) == ()


def test_affinity_wants_a_pod_in_the_domain_and_anti_affinity_none() -> None:
    first, second = a_node("n1", "a"), a_node("n2", "b")
    cluster = [(first, (a_pod(app="db"),)), (second, ())]

    wants, avoids = (a_pod(near(kind, "db")) for kind in ("podAffinity", "podAntiAffinity"))

    assert [Neighbours(wants, cluster).refusals(node) for node in (first, second)] == [(), (AFFINITY,)]
    assert [Neighbours(avoids, cluster).refusals(node) for node in (first, second)] == [(ANTI_AFFINITY,), ()]


def test_the_first_of_pods_that_want_each_other_goes_anywhere() -> None:
    node = a_node("n1", "a")

    assert Neighbours(a_pod(near("podAffinity", "web")), [(node, ())]).refusals(node) == ()
    assert Neighbours(a_pod(near("podAffinity", "db")), [(node, ())]).refusals(node) == (AFFINITY,)


def test_a_placed_pod_keeps_others_away_from_its_whole_domain() -> None:
    first, beside, far = a_node("n1", "a"), a_node("n2", "a"), a_node("n3", "b")
    lonely = a_pod(near("podAntiAffinity", "web"), app="db")

    counted = Neighbours(a_pod(), [(first, (lonely,)), (beside, ()), (far, ())])

    assert counted.refusals(beside) == (OTHERS_ANTI_AFFINITY,)
    assert counted.refusals(far) == ()


def test_terms_are_about_their_own_namespace_unless_they_say_otherwise() -> None:
    node = a_node("n1", "a")
    cluster = [(node, (a_pod(app="db", namespace="other"),))]

    own = Neighbours(a_pod(near("podAntiAffinity", "db")), cluster)
    named = Neighbours(a_pod(near("podAntiAffinity", "db", namespaces=["other"])), cluster)
    selected = Neighbours(a_pod(near("podAntiAffinity", "db", namespaceSelector={})), cluster)

    assert [one.refusals(node) for one in (own, named, selected)] == [(), (ANTI_AFFINITY,), (ANTI_AFFINITY,)]
