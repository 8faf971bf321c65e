"""An allocation gives what its pod asks for, neither more nor less."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import Gpu
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import GpuView, NodeView
from gpuloom.placement.fit import Refusal
from services.node_agent.delivery.core.comparison import Requested, difference
from tests.unit.node_agent.delivery.builders import (
    MEMORY_MIB,
    a_cut_gpu,
    a_device,
    a_gpu,
    a_slice,
    an_allocation,
)

GPUS = {gpu.uuid: gpu for gpu in (a_gpu(), a_gpu("GPU-b", 1), a_cut_gpu())}
SLICE = replace(a_slice(), milli=125)

shares = st.builds(Requested, st.just("main"), st.integers(1, 999), st.none() | st.integers(1, MEMORY_MIB))
wholes = st.builds(Requested, st.just("main"), st.sampled_from([1000, 2000]), st.none() | st.integers(1, 9))
slices = st.just(Requested("main", 125, None, "1g.5gb"))


def compared(requested: Requested, *devices: AllocatedDevice) -> str:
    return difference(an_allocation(*devices), requested, GPUS)


def placed(requested: Requested) -> tuple[AllocatedDevice, ...]:
    """What the extender gives, by the functions that it uses."""
    if requested.mig_profile is not None:
        kind = RequestKind.MIG
    else:
        kind = RequestKind.WHOLE if requested.milli >= 1000 else RequestKind.SHARE
    gpu = GpuRequest(
        kind,
        Authority.GPULOOM,
        requested.count,
        requested.milli_each,
        requested.memory_mib,
        requested.mig_profile,
    )
    cards = tuple(_free(gpu) for gpu in GPUS.values())
    node = NodeView("n1", "uid-n1", NodeMode.GPULOOM, Delivery.NRI, cards)
    chosen = choose_devices(PodRequest(gpu, "main"), node)
    assert not isinstance(chosen, Refusal)
    return chosen


def _free(gpu: Gpu) -> GpuView:
    return GpuView(gpu, 1000, gpu.memory_mib, gpu.mig_instances, mig_slices=8)


@given(st.one_of(shares, wholes, slices))
def test_what_placement_gives_never_differs(requested: Requested) -> None:
    assert compared(requested, *placed(requested)) == ""


@given(st.one_of(shares, wholes, slices), st.one_of(shares, wholes, slices))
def test_what_placement_gives_to_another_request_differs(mine: Requested, other: Requested) -> None:
    """Unless it is the same but for the memory that a whole card must have at least, or drifted memory."""
    devices = placed(other)
    same_kind = (mine.milli, mine.mig_profile) == (other.milli, other.mig_profile)
    if not same_kind:
        assert compared(mine, *devices)
    elif mine.milli < 1000 and mine.memory_mib is not None:
        assert bool(compared(mine, *devices)) == (devices[0].memory_mib != mine.memory_mib)


@pytest.mark.parametrize(
    ("requested", "devices", "told"),
    [
        (Requested("main", 100), [a_device()], "gives 1000 milli, .* asks for 100 milli"),
        (
            Requested("main", 1000),
            [a_device(), a_device("GPU-b")],
            "gives 1000 milli, 1000 milli, .* 1000 milli",
        ),
        (Requested("main", 2000), [a_device()], "gives 1000 milli, .* asks for 2000 milli"),
        (Requested("main", 1500), [a_device()], "asks for 1500 milli"),
        (Requested("main", 0, 100), [a_device(milli=1)], "asks for 0 milli"),
        (Requested("main", 500), [a_device(milli=500, memory_mib=MEMORY_MIB)], "40960 MiB, .* for 20480 MiB"),
        (Requested("main", 500), [a_device(milli=500, memory_mib=1)], "gives 1 MiB, .* asks for 20480 MiB"),
        (Requested("main", 500, 4000), [a_device(milli=500, memory_mib=4001)], "4001 MiB, .* for 4000 MiB"),
        (Requested("main", 125), [SLICE], "gives a MIG instance 1g.5gb of 125 milli, .* asks for 125 milli"),
        (Requested("main", 125, None, "1g.10gb"), [SLICE], "asks for a MIG instance 1g.10gb of 125 milli"),
        (Requested("main", 250, None, "1g.5gb"), [SLICE], "asks for a MIG instance 1g.5gb of 250 milli"),
        (Requested("main", 1000, None, "1g.5gb"), [a_device()], "gives 1000 milli, .* a MIG instance 1g.5gb"),
        (Requested("side", 1000), [a_device()], "is for container main, but side asks for GPUs"),
    ],
)
def test_a_difference_is_told_with_both_sides(
    requested: Requested, devices: list[AllocatedDevice], told: str
) -> None:
    assert re.search(told, compared(requested, *devices))
