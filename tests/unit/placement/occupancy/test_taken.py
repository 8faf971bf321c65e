"""What is taken of each GPU, given who claims what."""

from collections.abc import Iterable

import pytest

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.ledger import Claim, EntryState
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import HolderSource, NodeMode, PodPresence, PodRef
from gpuloom.placement.occupancy.claims import UNRESERVED, closed_reason, held_claims, with_holders
from gpuloom.placement.occupancy.taken import CONTESTED, Taken, taken_by
from tests.unit.scheduler_extender.builders import (
    MEMORY_MIB,
    a_given_slice,
    a_gpu,
    a_holder,
    a_ref,
    a_state,
    given,
)

POD = a_ref("pod")
STATE = a_state()


def a_claim(
    *devices: AllocatedDevice, pod: PodRef = POD, advisory: bool = False, wanted: int | None = None
) -> Claim:
    return Claim(pod, EntryState.OBSERVED, devices, wanted=wanted, advisory=advisory)


def an_unknown_claim(wanted: int | None, problem: str = "") -> Claim:
    return Claim(POD, EntryState.OBSERVED, None, wanted=wanted, problem=problem)


def taken(claims: Iterable[Claim], *gpus: Gpu) -> dict[str, Taken]:
    return taken_by(claims, {gpu.uuid: gpu for gpu in gpus})


def fully_taken(claims: Iterable[Claim], *gpus: Gpu) -> set[str]:
    return {uuid for uuid, entry in taken(claims, *gpus).items() if entry.milli >= 1000}


def cards(*healths: GpuHealth) -> list[Gpu]:
    return [a_gpu(f"GPU-{index}", index, health=health) for index, health in enumerate(healths)]


OK, ILL = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY


def test_the_kubelets_choice_replaces_the_prediction() -> None:
    claim = with_holders(a_claim(given("GPU-0"), advisory=True), [a_holder(POD, "GPU-1")])

    assert claim.devices is not None
    assert [item.device.gpu_uuid for item in claim.devices] == ["GPU-1"]
    assert claim.confirmed
    assert not claim.advisory


def test_while_the_kubelet_shows_one_of_two_devices_the_other_stays_counted() -> None:
    claim = with_holders(a_claim(given("GPU-0"), given("GPU-1"), advisory=True), [a_holder(POD, "GPU-2")])

    assert len(fully_taken([claim], *cards(OK, OK, OK))) == 2
    assert not claim.confirmed


def test_devices_that_several_containers_hold_add_up() -> None:
    holders = [a_holder(POD, "GPU-1"), a_holder(POD, "GPU-2")]

    claim = with_holders(a_claim(given("GPU-0"), given("GPU-1"), advisory=True), holders)

    assert fully_taken([claim], *cards(OK, OK, OK)) == {"GPU-1", "GPU-2"}


def test_an_exact_allocation_is_widened_by_what_the_pod_holds_beyond_it() -> None:
    claim = with_holders(a_claim(given("GPU-0", 300, 1000)), [a_holder(POD, "GPU-0", "GPU-1")])

    found = taken([claim], *cards(OK, OK))

    assert (found["GPU-0"].milli, found["GPU-0"].memory_mib) == (300, 1000)
    assert (found["GPU-1"].milli, found["GPU-1"].memory_mib) == (1000, MEMORY_MIB)


def test_unknown_devices_become_known_when_the_node_shows_as_many_as_the_pod_wants() -> None:
    shown = [a_holder(POD, "GPU-0")]

    complete, too_few = (with_holders(an_unknown_claim(wanted), shown) for wanted in (1, 2))

    assert closed_reason([complete], STATE) == ""
    assert closed_reason([too_few], STATE) == "the devices of a GPU pod on the node are not known yet"


def test_a_pod_that_cannot_be_read_keeps_its_node_closed_whatever_it_shows() -> None:
    claim = with_holders(an_unknown_claim(None, problem="no sense in it"), [a_holder(POD, "GPU-0")])

    assert closed_reason([claim], STATE) == "a GPU pod on the node can't be accounted for: no sense in it"


def test_holders_without_a_pod_of_ours_count_with_whole_devices() -> None:
    stranger, process = a_ref("stranger"), PodRef("", "", "")
    holders = [a_holder(POD, "GPU-0"), a_holder(stranger, "GPU-1"), a_holder(process, "GPU-2")]

    claims = held_claims(holders, owners={POD.uid})

    assert fully_taken(claims, *cards(OK, OK, OK)) == {"GPU-1", "GPU-2"}


def test_a_prediction_moves_to_a_free_card_when_another_pod_turns_out_to_have_the_predicted_one() -> None:
    other = a_claim(given("GPU-0"), pod=a_ref("other"))

    found = fully_taken([a_claim(given("GPU-0"), advisory=True), other], *cards(OK, OK))

    assert found == {"GPU-0", "GPU-1"}


def test_a_prediction_that_moved_never_takes_another_card_of_its_own_pod() -> None:
    held = a_claim(given("GPU-0"), pod=a_ref("held"))
    predicted = a_claim(given("GPU-0"), given("GPU-1"), advisory=True)

    assert fully_taken([predicted, held], *cards(OK, OK, OK)) == {"GPU-0", "GPU-1", "GPU-2"}


def test_two_predictions_never_move_to_the_same_card() -> None:
    held = a_claim(given("GPU-0"), pod=a_ref("held"))
    predicted = [a_claim(given("GPU-0"), pod=a_ref(name), advisory=True) for name in ("one", "two")]

    assert fully_taken([*predicted, held], *cards(OK, OK, OK)) == {"GPU-0", "GPU-1", "GPU-2"}


def test_a_prediction_counts_against_a_card_that_could_be_given_out_before_one_that_could_not() -> None:
    held = a_claim(given("GPU-1"), pod=a_ref("held"))

    moved = fully_taken([a_claim(given("GPU-1"), advisory=True), held], *cards(ILL, OK, OK))
    turned_ill = fully_taken([a_claim(given("GPU-0"), advisory=True)], *cards(ILL, OK))

    assert moved == {"GPU-1", "GPU-2"}
    assert turned_ill == {"GPU-1"}


def test_a_predicted_whole_card_never_moves_to_a_card_in_mig_mode() -> None:
    cut = a_gpu("GPU-0", 0, slices=[("3g.20gb", 0)])
    held = a_claim(given("GPU-1"), pod=a_ref("held"))
    gpus = [cut, a_gpu("GPU-1", 1), a_gpu("GPU-2", 2)]

    found = fully_taken([a_claim(given("GPU-1"), advisory=True), held], *gpus)

    assert found == {"GPU-1", "GPU-2"}


def test_a_predicted_slice_moves_to_a_free_slice_of_its_profile() -> None:
    cut = a_gpu("GPU-0", 0, slices=[("3g.20gb", 0), ("1g.5gb", 4), ("3g.20gb", 4)])
    wanted = a_given_slice("GPU-0", "3g.20gb", 0)
    claims = [a_claim(wanted, advisory=True), a_claim(wanted, pod=a_ref("held"))]

    found = taken(claims, cut)

    assert found["GPU-0"].mig == {DeviceRef("GPU-0", MigPlacement(start, "3g.20gb")) for start in (0, 4)}
    assert found["GPU-0"].closed_reason == ""


def test_a_gpu_with_two_owners_beyond_its_capacity_is_closed() -> None:
    claims = [a_claim(given("GPU-0", 600)), a_claim(given("GPU-0", 600), pod=a_ref("other"))]

    assert taken(claims, *cards(OK))["GPU-0"].closed_reason == CONTESTED


def test_shares_that_fit_together_leave_the_gpu_open() -> None:
    claims = [
        a_claim(given("GPU-0", 600, 20_000)),
        a_claim(given("GPU-0", 400, 20_000), pod=a_ref("other")),
    ]

    assert taken(claims, *cards(OK))["GPU-0"] == Taken(1000, 40_000)


def test_memory_beyond_the_cards_own_closes_it_like_compute() -> None:
    claims = [a_claim(given("GPU-0", 100, 30_000)), a_claim(given("GPU-0", 100, 30_000), pod=a_ref("other"))]

    assert taken(claims, *cards(OK))["GPU-0"].closed_reason == CONTESTED


def test_a_card_whose_memory_shrank_under_its_owners_is_full_and_not_contested() -> None:
    now = a_gpu("GPU-0", 0, memory_mib=MEMORY_MIB - 424)
    uneven = [given("GPU-0", 200, 30_960), given("GPU-0", 200, 10_000)]

    whole = taken([a_claim(given("GPU-0"))], now)["GPU-0"]
    shared = taken([a_claim(uneven[0]), a_claim(uneven[1], pod=a_ref("other"))], now)["GPU-0"]

    assert whole == Taken(1000, now.memory_mib)
    assert shared == Taken(400, MEMORY_MIB)


def test_a_slice_with_two_owners_and_a_slice_of_a_card_given_whole_are_contested() -> None:
    cut = a_gpu("GPU-0", 0, slices=[("3g.20gb", 0), ("3g.20gb", 4)])
    owned = a_claim(a_given_slice("GPU-0", "3g.20gb", 0))

    twice = taken([owned, a_claim(a_given_slice("GPU-0", "3g.20gb", 0), pod=a_ref("other"))], cut)
    whole = taken([owned, a_claim(given("GPU-0"), pod=a_ref("other"))], cut)
    apart = taken([owned, a_claim(a_given_slice("GPU-0", "3g.20gb", 4), pod=a_ref("other"))], cut)

    assert [found["GPU-0"].closed_reason for found in (twice, whole, apart)] == [CONTESTED, CONTESTED, ""]


@pytest.mark.parametrize(
    ("mode", "present", "reason"),
    [
        (NodeMode.GPULOOM, PodPresence(), ""),
        (NodeMode.NVIDIA, PodPresence(), UNRESERVED),
        (NodeMode.NVIDIA, PodPresence(unknown_reason="mount it"), f"{UNRESERVED}; it can't be seen whether"),
    ],
)
def test_where_a_kubelet_chooses_a_deleted_pod_that_may_run_closes_the_node(
    mode: NodeMode, present: PodPresence, reason: str
) -> None:
    """It no longer counts those devices as given, so that it may choose them again whatever else is free."""
    held = held_claims([a_holder(POD, "GPU-0", source=HolderSource.CGROUP)], owners=set())

    assert closed_reason(held, a_state(mode=mode, present=present)).startswith(reason)
    assert bool(closed_reason(held, a_state(mode=mode, present=present))) is bool(reason)
