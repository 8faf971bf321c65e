"""A bind counts in full from its beginning, so that its confirmation changes nothing that anybody sees."""

import pytest

from gpuloom.errors import ConflictError, DeadlineError
from gpuloom.kube.client import PodBinding
from gpuloom.model.ledger import EntryState
from gpuloom.model.node import NodeMode
from gpuloom.placement.devices import NodeView
from tests.unit.scheduler_extender.bind_setup import POD, Desk
from tests.unit.scheduler_extender.builders import (
    JsonObject,
    a_pod,
    a_ref,
    an_allocation,
    given,
    gpuloom_share,
    nvidia_cards,
)

ASKED = {**gpuloom_share(500), "cpu": "4", "memory": "8Gi"}
OTHER = a_ref("other")
OTHER_CARD = an_allocation(POD, given("GPU-n1-1", 500, 20_480), node_uid="uid-n1")


def seen(desk: Desk, node: str = "n1", asker: str = "") -> NodeView:
    view = desk.state.views.view(node, asker)
    assert view is not None
    return view


def used_cores(desk: Desk, node: str = "n1", asker: str = "") -> int:
    host = seen(desk, node, asker).host
    assert host is not None
    return (host.cpu_total_milli - host.cpu_free_milli) // 1000


def used_gib(desk: Desk) -> int:
    host = seen(desk).host
    assert host is not None
    return (host.memory_total_bytes - host.memory_free_bytes) // 2**30


def as_bound(desk: Desk, asked: dict[str, str], phase: str = "Running") -> JsonObject:
    """The pod as its first Binding makes it."""
    (binding, *_) = desk.api.bindings
    return a_pod(POD, asked, node=binding.node, phase=phase, version=2, annotations=binding.annotations)


async def test_cpu_and_memory_of_a_bind_under_way_count_for_all_but_its_pod() -> None:
    desk = Desk(a_pod(POD, ASKED), outcomes=[DeadlineError("late")])

    await desk.bind()

    assert (used_cores(desk), used_gib(desk)) == (4, 8)
    assert used_cores(desk, asker=POD.uid) == 0


async def test_a_refused_bind_gives_cpu_and_memory_back() -> None:
    during: list[int] = []

    async def refuse(_: PodBinding) -> None:
        during.append(used_cores(desk))
        raise ConflictError("no")

    desk = Desk(a_pod(POD, ASKED), outcomes=[refuse])

    await desk.bind()

    assert during == [4]
    assert (used_cores(desk), used_gib(desk)) == (0, 0)


async def test_a_pod_that_vanishes_during_its_bind_gives_cpu_back_before_its_devices() -> None:
    desk = Desk(a_pod(POD, ASKED), outcomes=[DeadlineError("late")])
    await desk.bind()

    desk.api.shown.clear()
    desk.api.present.clear()
    await desk.bindings.settle()

    assert (used_cores(desk), desk.held_cards()) == (0, 1)


async def test_binds_of_one_pod_to_two_nodes_count_on_both_until_one_is_seen() -> None:
    desk = Desk(a_pod(POD, ASKED), outcomes=[DeadlineError("late"), DeadlineError("late")])
    await desk.bind("n1")
    await desk.bind("n2")
    during = used_cores(desk, "n1"), used_cores(desk, "n2")

    desk.observe(as_bound(desk, ASKED))

    assert during == (4, 4)
    assert (used_cores(desk, "n1"), used_cores(desk, "n2")) == (4, 0)
    assert (desk.held_cards("n1"), desk.held_cards("n2")) == (1, 0)


@pytest.mark.parametrize("mode", [NodeMode.GPULOOM, NodeMode.NVIDIA])
async def test_a_bind_that_is_confirmed_outdates_no_view_and_is_counted_as_observed(mode: NodeMode) -> None:
    asked = ASKED if mode is NodeMode.GPULOOM else {**nvidia_cards(), "cpu": "4", "memory": "8Gi"}
    desk = Desk(a_pod(POD, asked), mode=mode)
    await desk.bind()
    during, in_flight = seen(desk), desk.state.entry_counts()

    desk.observe(as_bound(desk, asked))
    outdated = desk.state.views.outdated
    counts = desk.state.entry_counts()

    assert outdated == 0
    assert seen(desk) is during
    assert (used_cores(desk), used_gib(desk), desk.held_cards()) == (4, 8, 1)
    assert (in_flight[EntryState.IN_FLIGHT], in_flight[EntryState.OBSERVED]) == (1, 0)
    assert (counts[EntryState.IN_FLIGHT], counts[EntryState.OBSERVED]) == (0, 1)


async def test_a_pod_that_ends_after_its_bind_was_confirmed_gives_all_back() -> None:
    desk = Desk(a_pod(POD, ASKED))
    await desk.bind()
    desk.observe(as_bound(desk, ASKED))

    desk.observe(as_bound(desk, ASKED, phase="Succeeded"))

    assert (used_cores(desk), desk.held_cards()) == (0, 0)
    assert desk.state.entry_counts()[EntryState.OBSERVED] == 0


async def test_a_pod_that_turns_up_with_other_devices_is_seen_with_those() -> None:
    desk = Desk(a_pod(POD, ASKED))
    await desk.bind()
    first = seen(desk)

    desk.observe(a_pod(POD, ASKED, node="n1", version=2, allocation=OTHER_CARD))

    assert [gpu.untouched for gpu in first.gpus] == [False, True]
    assert [gpu.untouched for gpu in seen(desk).gpus] == [True, False]


async def test_a_pod_that_was_resized_during_its_bind_counts_with_its_new_size() -> None:
    desk = Desk(a_pod(POD, ASKED))
    await desk.bind()
    seen(desk)

    desk.observe(as_bound(desk, {**ASKED, "cpu": "6"}))

    assert used_cores(desk) == 6


async def test_a_pod_whose_record_was_taken_off_closes_its_node() -> None:
    desk = Desk(a_pod(POD, ASKED))
    await desk.bind()
    seen(desk)

    desk.observe(a_pod(POD, ASKED, node="n1", version=2))

    assert seen(desk).closed_reason == "the devices of a GPU pod on the node are not known yet"


async def test_a_pod_that_counts_on_its_node_already_counts_there_once() -> None:
    """As one that asked for no GPU when it was seen there."""
    desk = Desk(a_pod(POD, ASKED), outcomes=[DeadlineError("late")])
    await desk.bind()
    desk.observe(a_pod(POD, {"cpu": "2"}, node="n1", version=2))
    without = used_cores(desk)

    desk.observe(as_bound(desk, ASKED))

    assert (without, used_cores(desk)) == (2, 4)


async def test_a_confirmed_bind_hides_no_other_change_of_its_node() -> None:
    desk = Desk(a_pod(POD, ASKED), a_pod(OTHER, ASKED))
    await desk.bind()
    seen(desk)

    await desk.bind(pod=OTHER)
    desk.observe(as_bound(desk, ASKED))

    assert used_cores(desk) == 8
    assert seen(desk).gpus[0].free_milli == 0
