"""Who is shown with how much of a device."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import HolderSource, PodRef
from gpuloom.model.process import GpuProcess
from services.node_agent.exporter.core.shares import NOBODY, Division, Owner, Share, divide
from tests.unit.node_agent.exporter.builders import MIG_GPU, SLICES, a_holder, a_picture, a_process

LEFT, RIGHT = Owner("team-a", "left", "main"), Owner("team-a", "right", "main")

owners = st.sampled_from([LEFT, RIGHT, Owner("team-b", "third", "main")])
processes = st.builds(
    a_process,
    pod=st.sampled_from(["", "left", "right", "stranger"]),
    sm_ratio=st.none() | st.floats(0, 1),
    memory_mib=st.none() | st.integers(0, 80_000),
    container=st.sampled_from(["main", "", "other"]),
)


def test_one_holder_has_all_of_its_device() -> None:
    assert divide([LEFT], []) == (Share(LEFT, 1.0, 1.0),)


def test_a_device_that_nobody_has_is_shown_for_nobody() -> None:
    assert divide([], []) == (Share(NOBODY, 1.0, 1.0),)


def test_sharing_pods_are_split_by_what_their_processes_use() -> None:
    used = [
        a_process("left", sm_ratio=0.6, memory_mib=1000),
        a_process("right", sm_ratio=0.2, memory_mib=3000),
    ]

    left, right = divide([LEFT, RIGHT], used)

    assert (left.compute_ratio, left.memory_ratio) == pytest.approx((0.75, 0.25))
    assert (right.compute_ratio, right.memory_ratio) == pytest.approx((0.25, 0.75))


def test_holders_share_in_equal_parts_where_no_use_is_measured() -> None:
    shares = divide([LEFT, RIGHT], [a_process("left"), a_process("right")])

    assert shares == (Share(LEFT, 0.5, 0.5), Share(RIGHT, 0.5, 0.5))


def test_a_holder_without_a_process_used_nothing_where_others_are_measured() -> None:
    shares = divide([LEFT, RIGHT], [a_process("left", sm_ratio=0.1, memory_mib=100)])

    assert shares == (Share(LEFT, 1.0, 1.0), Share(RIGHT, 0.0, 0.0))


def test_what_no_pod_used_stays_with_nobody() -> None:
    shares = divide([LEFT], [a_process("left", sm_ratio=0.3), a_process(sm_ratio=0.1, memory_mib=10)])

    assert [share.owner for share in shares] == [NOBODY, LEFT]
    assert [share.compute_ratio for share in shares] == pytest.approx([0.25, 0.75])
    assert [share.memory_ratio for share in shares] == [1.0, 0.0]


def test_an_idle_process_of_no_pod_gets_no_series() -> None:
    assert divide([LEFT], [a_process(memory_mib=None)]) == (Share(LEFT, 1.0, 1.0),)


def test_a_pod_that_computes_without_holding_the_device_is_shown() -> None:
    shares = divide([LEFT], [a_process("stranger", sm_ratio=0.5)])

    assert [share.owner.pod for share in shares] == ["left", "stranger"]
    assert shares[1].compute_ratio == 1.0


def test_a_process_of_an_unknown_container_is_of_the_one_that_holds_the_device() -> None:
    assert divide([LEFT], [a_process("left", container="", sm_ratio=0.5)]) == (Share(LEFT, 1.0, 1.0),)


def test_two_containers_of_a_pod_leave_an_unknown_one_unnamed() -> None:
    holders = [LEFT, Owner("team-a", "left", "side")]

    shares = divide(holders, [a_process("left", container="", sm_ratio=0.5)])

    assert [share.owner.container for share in shares] == ["", "main", "side"]


@given(st.sets(owners), st.lists(processes, max_size=6))
def test_the_shares_of_a_device_make_one_whole(holders: set[Owner], used: list[GpuProcess]) -> None:
    shares = divide(holders, used)

    assert sum(share.compute_ratio for share in shares) == pytest.approx(1)
    assert sum(share.memory_ratio for share in shares) == pytest.approx(1)
    assert len({share.owner for share in shares}) == len(shares)
    assert holders <= {share.owner for share in shares}


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 80_000), st.integers(0, 80_000))
def test_two_sharing_pods_shares_sum_to_one(
    left_sm: float, right_sm: float, left_mib: int, right_mib: int
) -> None:
    used = [
        a_process("left", sm_ratio=left_sm, memory_mib=left_mib),
        a_process("right", sm_ratio=right_sm, memory_mib=right_mib),
    ]

    left, right = divide([LEFT, RIGHT], used)

    assert left.compute_ratio + right.compute_ratio == pytest.approx(1)
    assert left.memory_ratio + right.memory_ratio == pytest.approx(1)


def test_a_pod_made_anew_under_its_name_is_one_owner() -> None:
    device = DeviceRef("GPU-a")
    again = a_holder("left", device)

    division = Division(a_picture(holders=(a_holder("left", device, device), again)))

    assert division.shares(device) == (Share(LEFT, 1.0, 1.0),)


def test_holders_known_by_their_processes_alone_hold_nothing() -> None:
    device = DeviceRef("GPU-a")
    holders = (a_holder("left", device), a_holder("ghost", device, source=HolderSource.PROCESS))

    division = Division(a_picture(holders=holders))

    assert [share.owner for share in division.shares(device)] == [LEFT]


def test_a_pod_without_a_name_is_nobody() -> None:
    unnamed = PodRef("", "", "uid-gone")
    device = DeviceRef("GPU-a")
    holder = a_holder("x", device, pod=unnamed)
    process = replace(a_process("x", sm_ratio=0.5), pod=unnamed)

    division = Division(a_picture(holders=(holder,), processes=(process,)))

    assert division.shares(device) == (Share(NOBODY, 1.0, 1.0),)


def test_instances_of_one_card_are_divided_each_for_itself() -> None:
    big, small = (DeviceRef(MIG_GPU, placement) for placement in SLICES)
    processes = (a_process("left", big, sm_ratio=0.5), a_process("right", small, sm_ratio=0.1))

    division = Division(a_picture(holders=(a_holder("left", big),), processes=processes))

    assert division.shares(big) == (Share(LEFT, 1.0, 1.0),)
    assert division.shares(small) == (Share(RIGHT, 1.0, 1.0),)
