"""What holds keep back of a node, and from whom."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given as sampled
from hypothesis import settings
from hypothesis import strategies as st

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import Claim, EntryState, Hold, NodeLedger
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode
from gpuloom.placement.devices import NodeView
from gpuloom.placement.occupancy.holds import conflicting
from gpuloom.placement.occupancy.node_view import node_view
from tests.effort import examples
from tests.unit.scheduler_extender.builders import MEMORY_MIB, a_gpu, a_ref, given, some_facts

CUT = (("3g.20gb", 0), ("3g.20gb", 4))
SERVICE = HoldOwner("Service", "mig_controller")
POD = HoldOwner("Pod", "pod", "default", "uid-pod")


def a_hold(device: AllocatedDevice | None = None, owner: HoldOwner = SERVICE, name: str = "h") -> Hold:
    return Hold(name, "node", owner, "being cut", device=device)


def a_place(uuid: str, profile: str, start: int) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(uuid, MigPlacement(start, profile)), 1000, 0)


def seen(
    *holds: Hold, claims: Iterable[Claim] = (), mode: NodeMode = NodeMode.GPULOOM, cut: bool = False
) -> NodeView:
    gpus = (a_gpu("GPU-a", 0, slices=CUT if cut else ()), a_gpu("GPU-b", 1))
    ledger = NodeLedger("node", "uid-node", tuple(claims), holds=holds)
    return node_view(ledger, some_facts("node", *gpus, mode=mode))


def a_claim(*devices: AllocatedDevice, state: EntryState = EntryState.OBSERVED) -> Claim:
    return Claim(a_ref(), state, devices)


def test_a_held_node_is_closed_with_the_reason() -> None:
    assert seen(a_hold()).closed_reason == "held: being cut"


def test_a_held_gpu_is_closed_whoever_has_a_part_of_it() -> None:
    view = seen(a_hold(given("GPU-a")), claims=[a_claim(given("GPU-a", 300))])

    assert [gpu.closed_reason for gpu in view.gpus] == ["held: being cut", ""]
    assert view.closed_reason == ""


def test_a_held_share_leaves_the_rest_of_the_card() -> None:
    view = seen(a_hold(given("GPU-a", 300, 10_000)), claims=[a_claim(given("GPU-a", 500, 20_000))])

    card = view.gpus[0]
    assert (card.free_milli, card.free_memory_mib, card.closed_reason) == (200, MEMORY_MIB - 30_000, "")


def test_a_held_place_keeps_back_what_overlaps_it() -> None:
    view = seen(a_hold(a_place("GPU-a", "1g.5gb", 6)), cut=True)

    assert [instance.placement.start for instance in view.gpus[0].free_mig] == [0]


def test_a_held_place_on_a_card_that_is_not_cut_closes_the_card() -> None:
    assert seen(a_hold(a_place("GPU-b", "1g.5gb", 6)), cut=True).gpus[1].closed_reason == "held: being cut"


def test_a_hold_for_a_pod_counts_until_the_pod_is_there() -> None:
    hold = a_hold(given("GPU-a"), POD)
    on_its_way = a_claim(given("GPU-b"), state=EntryState.IN_FLIGHT)

    held = [seen(hold, claims=claims).gpus[0].closed_reason for claims in ([], [on_its_way])]
    used = seen(hold, claims=[a_claim(given("GPU-b"))]).gpus[0].closed_reason

    assert held == ["held: being cut"] * 2
    assert used == ""


def test_where_the_kubelet_chooses_a_pod_s_hold_counts_by_number_and_another_closes_the_node() -> None:
    taken = Claim(
        a_ref("other"), EntryState.OBSERVED, (given("GPU-a"),), confirmed=True, mode=NodeMode.NVIDIA
    )

    for_pod = seen(a_hold(given("GPU-a"), POD), claims=[taken], mode=NodeMode.NVIDIA)
    for_service = seen(a_hold(given("GPU-a")), mode=NodeMode.NVIDIA)

    assert [gpu.closed_reason for gpu in for_pod.gpus] == ["", "held: being cut"]
    assert "its kubelet could give it out" in for_service.closed_reason


def test_a_hold_of_another_machine_or_node_means_nothing_here() -> None:
    elsewhere = replace(a_hold(), node_name="other")
    before = replace(a_hold(), node_uid="uid-before")

    assert seen(elsewhere, before) == seen()


def test_a_hold_that_can_t_be_read_closes_what_it_may_be_about() -> None:
    anywhere = Hold("h", "", HoldOwner("", ""), "", problem="no target")

    assert seen(anywhere).closed_reason == "a hold can't be read: no target"


@pytest.mark.parametrize(
    ("owner", "uid", "name", "gang", "let_through"),
    [
        (POD, "uid-pod", "default/other", "", True),
        (POD, "uid-other", "default/pod", "", False),
        (replace(POD, uid=None), "uid-any", "default/pod", "", True),
        (HoldOwner("Gang", "g", "default"), "uid-any", "default/x", "default/g", True),
        (HoldOwner("Gang", "g", "default"), "uid-any", "default/x", "other/g", False),
        (HoldOwner("Gang", "g", "default"), "uid-any", "default/x", "", False),
        (SERVICE, "mig_controller", "default/mig_controller", "", False),
    ],
)
def test_exactly_its_pod_or_gang_is_let_through(
    owner: HoldOwner, uid: str, name: str, gang: str, let_through: bool
) -> None:
    hold = a_hold(given("GPU-a"), owner)

    assert (hold.is_for_pod(uid, name) or hold.is_for_gang(gang)) is let_through


CARDS = st.sampled_from(["GPU-a", "GPU-b"])
DEVICES = st.none() | st.one_of(
    st.builds(given, st.sampled_from(["GPU-a", "GPU-b"]), st.sampled_from([300, 1000]), st.just(10_000)),
    st.builds(
        a_place, st.sampled_from(["GPU-a", "GPU-b"]), st.sampled_from(["1g.5gb", "3g.20gb"]), st.just(4)
    ),
)


@settings(max_examples=examples(150))
@sampled(st.lists(st.builds(a_hold, DEVICES, st.sampled_from([SERVICE, POD])), max_size=4), st.booleans())
def test_a_hold_more_never_opens_anything(holds: list[Hold], cut: bool) -> None:
    for count in range(len(holds)):
        before, after = seen(*holds[:count], cut=cut), seen(*holds[: count + 1], cut=cut)

        assert after.closed_reason or not before.closed_reason
        for one, other in zip(before.gpus, after.gpus, strict=True):
            assert other.free_milli <= one.free_milli
            assert other.free_memory_mib <= one.free_memory_mib
            assert set(other.free_mig) <= set(one.free_mig)
            assert other.closed_reason or not one.closed_reason


@settings(max_examples=examples(150))
@sampled(DEVICES, DEVICES)
def test_two_holds_are_in_each_other_s_way_or_they_are_not(
    first: AllocatedDevice | None, second: AllocatedDevice | None
) -> None:
    one, other = a_hold(first, name="one"), a_hold(second, name="other")

    assert (conflicting([one], other) is None) == (conflicting([other], one) is None)
    assert conflicting([one], one) is None


@pytest.mark.parametrize("mode", list(NodeMode))
def test_what_a_pod_is_promised_of_a_reservation_counts_once(mode: NodeMode) -> None:
    reserved = a_hold(given("GPU-a"), HoldOwner("GPUReservation", "later", "default"), "reserved")

    view = seen(reserved, a_hold(given("GPU-a"), POD, "promise"), mode=mode)

    assert sum(not gpu.closed_reason for gpu in view.gpus) == 1
