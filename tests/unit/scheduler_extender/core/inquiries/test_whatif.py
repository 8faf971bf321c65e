"""Replicas placed one after the other: each sees what the ones before it took."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.kube.cache import Change
from gpuloom.model.explanation import Forecast
from gpuloom.model.node import PodRef
from gpuloom.model.request import PodRequest
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.occupancy.taken import with_taken
from gpuloom.placement.score import rank
from services.scheduler_extender.core.inquiries.whatif import forecast
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from tests.effort import examples
from tests.unit.placement.builders import a_card, a_cut_card, a_share, a_slice, whole
from tests.unit.placement.builders import a_node as a_view
from tests.unit.placement.strategies import clusters, requests
from tests.unit.scheduler_extender.builders import (
    HandClock,
    a_gpu,
    a_node,
    an_allocation,
    some_facts,
)
from tests.unit.scheduler_extender.core.inquiries.test_explain import JUDGE, finished

GIB = 2**30


def placed(request: PodRequest, replicas: int, *views: NodeView) -> Forecast:
    return finished(forecast(request, views, replicas, JUDGE))


def test_two_halves_share_a_card_and_the_fifth_finds_none() -> None:
    found = placed(a_share(500), 5, a_view(a_card(0), a_card(1)))

    devices = Counter(offer.devices[0].device.gpu_uuid for offer in found.placed)
    assert devices == {"GPU-0": 2, "GPU-1": 2}
    assert found.judgement is not None
    assert [entry.reason for entry in found.judgement.reasons] == ["no GPU with 500 milli free"]


def test_replicas_go_to_the_next_node_when_one_is_full() -> None:
    views = [a_view(a_card(0), a_card(1), name=name) for name in ("a", "b")]

    found = placed(whole(2), 2, *views)

    assert sorted(offer.node_name for offer in found.placed) == ["a", "b"]
    assert found.judgement is None


def test_cpu_and_memory_run_out_too() -> None:
    host = HostCapacity(4000, 4000, 64 * GIB, 64 * GIB)
    request = replace(whole(1), cpu_milli=1500)

    found = placed(request, 4, a_view(*(a_card(i) for i in range(4)), host=host))

    assert len(found.placed) == 2
    assert found.judgement is not None
    assert found.judgement.reasons[0].reason == "not enough free CPU"


def test_mig_slices_are_given_once() -> None:
    view = a_view(a_cut_card(0, ("1g.5gb", 0), ("1g.5gb", 1)))

    found = placed(a_slice("1g.5gb", milli=125), 3, view)

    starts = [offer.devices[0].device.mig.start for offer in found.placed if offer.devices[0].device.mig]
    assert sorted(starts) == [0, 1]
    assert found.judgement is not None


def test_asking_does_not_change_the_views() -> None:
    view = a_view(a_card(0), a_card(1))

    placed(whole(1), 2, view)

    assert all(card.untouched for card in view.gpus)


@settings(max_examples=examples(25))
@given(requests(), clusters(), st.integers(1, 6))
def test_it_is_what_ranking_all_nodes_anew_for_each_replica_gives(
    request_: PodRequest, drawn: tuple[NodeView, ...], replicas: int
) -> None:
    views = {f"n{number}": replace(view, name=f"n{number}", host=None) for number, view in enumerate(drawn)}

    found = placed(request_, replicas, *views.values())

    expected = []
    for _ in range(replicas):
        ranked = rank(request_, views.values())
        if not ranked:
            break
        name = ranked[0].name
        devices = choose_devices(request_, views[name])
        assert not isinstance(devices, Refusal)
        expected.append((name, devices))
        views[name] = with_taken(views[name], request_, devices)
    assert [(offer.node_name, offer.devices) for offer in found.placed] == expected


@given(st.lists(st.sampled_from(["whole", "share", "slice"]), max_size=6))
def test_a_scratch_node_is_what_the_ledger_shows_after_the_same_binds(kinds: list[str]) -> None:
    asked = {"whole": whole(1), "share": a_share(300), "slice": a_slice("1g.5gb", milli=125)}
    state = ClusterState(Ledger(30.0), lambda: False, HandClock())
    state.observe_node(Change(None, a_node("node")))
    cut = a_gpu("GPU-cut", 2, slices=[("1g.5gb", 0), ("1g.5gb", 1)])
    state.observe_facts("uid-node", some_facts("node", a_gpu("GPU-a", 0), a_gpu("GPU-b", 1), cut))
    scratch = state.views.view("node")
    assert scratch is not None

    for number, kind in enumerate(kinds):
        devices = choose_devices(asked[kind], scratch)
        if isinstance(devices, Refusal):
            continue
        scratch = with_taken(scratch, asked[kind], devices)
        pod = PodRef("default", f"p{number}", f"uid-{number}")
        state.ledger.begin(Attempt(pod, "node", an_allocation(pod, *devices)))

    assert state.views.view("node") == scratch
