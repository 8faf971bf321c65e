"""What nodes say about a request: reasons, offers, nearest misses and changes that help."""

from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings

from gpuloom.model.explanation import Judgement, NearMiss
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, PodRequest, TopologyPreference
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fit import Refusal, fit
from gpuloom.placement.score import ScoreWeights, rank
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.inquiries.explain import CHANGES, NEAR_MISSES, OFFERS, judged
from services.scheduler_extender.core.inquiries.gaps import gap_of
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from tests.effort import examples
from tests.unit.placement.builders import a_card, a_cut_card, a_node, a_shaped_node, a_share, a_slice, whole
from tests.unit.placement.strategies import clusters, requests

Result = TypeVar("Result")

JUDGE = Judge(Evaluator(ScoreWeights()))
GIB = 2**30


def finished(steps: Generator[None, None, Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result


def judgement(request: PodRequest, *views: NodeView) -> Judgement:
    return finished(judged(request, views, JUDGE))


def cards(free: int, of: int = 4, name: str = "node") -> NodeView:
    return a_node(*(a_card(i, 1000 if i < free else 0) for i in range(of)), name=name)


def test_reasons_are_counted_with_the_most_frequent_first() -> None:
    views = [
        cards(0, name="a"),
        cards(1, name="b"),
        a_node(name="c", closed_reason="the agent is silent"),
        cards(0, of=1, name="d"),
    ]

    found = judgement(whole(2), *views)

    assert [(entry.node_count, entry.reason, entry.resolvable) for entry in found.reasons] == [
        (2, "not enough free GPUs: 2 asked", True),
        (1, "node closed: the agent is silent", False),
        (1, "node has fewer than 2 GPUs outside MIG mode", False),
    ]
    assert (found.node_count, found.fitting_count) == (4, 0)


def test_a_request_that_fits_gets_what_filter_and_bind_would_give() -> None:
    views = [cards(free, name=f"n{free}") for free in range(5)]
    request = whole(2)

    found = judgement(request, *views)

    ranked = rank(request, views)
    best = {view.name: view for view in views}[ranked[0].name]
    assert [offer.node_name for offer in found.offers] == [scored.name for scored in ranked][:OFFERS]
    assert found.offers[0].devices == choose_devices(request, best)
    assert found.offers[0].total == ranked[0].total
    assert found.fitting_count == 3
    assert found.near_misses == ()
    assert found.changes == ()


def test_nodes_without_cpu_or_memory_refuse_as_kube_scheduler_would() -> None:
    host = HostCapacity(8000, 2000, 64 * GIB, 64 * GIB)
    request = replace(whole(1), cpu_milli=4000)

    found = judgement(request, replace(cards(4), host=host))

    assert [entry.reason for entry in found.reasons] == ["not enough free CPU"]
    assert found.near_misses == (NearMiss("node", "the GPUs free, but 2 of 4 CPUs"),)
    assert found.changes[0].change == "2 CPUs instead of 4"


def test_the_nearest_nodes_come_first_and_say_what_they_have() -> None:
    views = [cards(free, of=8, name=f"n{free}") for free in range(8)]

    found = judgement(whole(8, authority=Authority.GPULOOM), *views)

    assert found.near_misses[0] == NearMiss("n7", "7 of 8 GPUs free")
    assert found.near_misses[1] == NearMiss("n6", "6 of 8 GPUs free")
    assert len(found.near_misses) == NEAR_MISSES
    assert found.changes[0].change == "gpuloom.dev/gpu-milli: 7000 instead of gpuloom.dev/gpu-milli: 8000"
    assert (found.changes[0].node_count, found.changes[0].node_name) == (1, "n7")


@pytest.mark.parametrize(
    ("request_", "view", "has", "change"),
    [
        (
            a_share(500),
            a_node(a_card(0, 300)),
            "300 of 500 milli of one GPU free",
            "gpuloom.dev/gpu-milli: 300 instead of gpuloom.dev/gpu-milli: 500",
        ),
        (
            a_share(500, 8000),
            a_node(a_card(0, 600, 3000)),
            "3000 of 8000 MiB free beside 500 milli of one GPU",
            "gpuloom.dev/gpu-memory-mib: 3000 instead of 8000",
        ),
        (
            whole(1),
            a_node(a_card(0, 400)),
            "400 of 1000 milli of one GPU free",
            "gpuloom.dev/gpu-milli: 400 instead of gpuloom.dev/gpu-milli: 1000",
        ),
        (
            whole(4, topology=TopologyPreference.NVLINK, required=True),
            cards(4),
            "4 GPUs free, but not with the topology asked for",
            "without gpuloom.dev/topology-required",
        ),
        (
            a_slice("1g.5gb", 3, authority=Authority.NVIDIA),
            a_node(a_cut_card(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2), used=1), mode=NodeMode.NVIDIA),
            "2 of 3 MIG slices 1g.5gb free",
            "nvidia.com/mig-1g.5gb: 2 instead of nvidia.com/mig-1g.5gb: 3",
        ),
    ],
)
def test_what_is_lacking_is_said_and_asking_for_that_much_less_fits(
    request_: PodRequest, view: NodeView, has: str, change: str
) -> None:
    found = judgement(request_, view)

    assert found.near_misses == (NearMiss("node", has),)
    assert found.changes[0].change == change


@pytest.mark.parametrize(
    ("request_", "view", "change"),
    [
        (whole(2, models=("H100-SXM5-80GB",)), cards(2), "without gpuloom.dev/gpu-model"),
        (whole(2, architectures=("hopper",)), cards(2), "without gpuloom.dev/gpu-architecture"),
        (
            whole(2, authority=Authority.NVIDIA),
            cards(2),
            "gpuloom.dev/gpu-milli: 2000 instead of nvidia.com/gpu: 2",
        ),
        (
            whole(2),
            replace(cards(2), mode=NodeMode.NVIDIA, delivery=Delivery.DEVICE_PLUGIN),
            "nvidia.com/gpu: 2 instead of gpuloom.dev/gpu-milli: 2000",
        ),
        (
            a_share(500),
            replace(cards(2), delivery=Delivery.ENV),
            "runtimeClassName: nvidia and NVIDIA_VISIBLE_DEVICES from gpuloom.dev/visible-devices",
        ),
        (
            replace(a_share(500), runtime_class="nvidia"),
            cards(2),
            "without runtimeClassName: nvidia",
        ),
        (
            replace(whole(2, authority=Authority.NVIDIA), runtime_class="nvidia"),
            cards(2),
            "gpuloom.dev/gpu-milli: 2000 instead of nvidia.com/gpu: 2, without runtimeClassName: nvidia",
        ),
        (
            a_slice("1g.5gb", milli=125),
            a_node(a_cut_card(0, ("2g.10gb", 0), ("3g.20gb", 4))),
            "gpuloom.dev/mig-profile: 2g.10gb with gpuloom.dev/gpu-milli: 250 instead of 1g.5gb",
        ),
        (
            a_slice("1g.5gb", authority=Authority.NVIDIA),
            a_node(a_cut_card(0, ("3g.20gb", 4)), mode=NodeMode.NVIDIA),
            "nvidia.com/mig-3g.20gb instead of nvidia.com/mig-1g.5gb",
        ),
        (
            whole(2, models=("H100-SXM5-80GB",), architectures=("hopper",)),
            cards(2),
            "without any wish for model, architecture or topology",
        ),
        (
            whole(3, models=("H100-SXM5-80GB",), architectures=("hopper",)),
            cards(2),
            "without any wish for model, architecture or topology, and gpuloom.dev/gpu-milli: 2000 instead "
            "of gpuloom.dev/gpu-milli: 3000",
        ),
    ],
)
def test_the_smallest_change_that_fits_is_found(request_: PodRequest, view: NodeView, change: str) -> None:
    found = judgement(request_, view)

    assert found.changes[0].change == change
    assert found.changes[0].node_name == "node"


def test_nothing_helps_on_closed_nodes() -> None:
    found = judgement(whole(1), a_node(a_card(), closed_reason="the agent is silent"))

    assert found.near_misses == ()
    assert found.changes == ()


def test_without_nodes_there_is_nothing_to_say() -> None:
    assert judgement(whole(1)) == Judgement(0, 0)


def test_fewer_gpus_still_have_the_topology_that_is_required() -> None:
    request = whole(8, topology=TopologyPreference.NVLINK, required=True)

    found = judgement(request, a_shaped_node("dgx-1v-quad", 0b1111))

    assert found.near_misses == (NearMiss("node", "4 of 8 GPUs free with the topology asked for"),)


@settings(max_examples=examples(30))
@given(requests(), clusters())
def test_counts_agree_with_fit_and_every_gap_can_be_served(
    request_: PodRequest, drawn: tuple[NodeView, ...]
) -> None:
    views = [replace(view, name=f"n{number}") for number, view in enumerate(drawn)]

    found = judgement(request_, *views)

    assert found.node_count == found.fitting_count + sum(entry.node_count for entry in found.reasons)
    assert len(found.changes) <= CHANGES
    assert all(offer.devices or not request_.gpu.count for offer in found.offers)
    for view in views:
        gap = gap_of(request_, view)
        if gap is not None:
            assert 0.0 <= gap.missing <= 1.0
            assert gap.relaxed is None or not isinstance(fit(gap.relaxed, view), Refusal)
