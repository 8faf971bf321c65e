"""How a share becomes a limit."""

import pytest

from gpuloom.errors import NotAllowedError
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, SharingMode
from gpuloom.model.mig import MigPlacement
from gpuloom.placement.keeping import Enforcement, Hardness, hardness_of, keeping_text
from services.node_agent.delivery.core.enforcement import mps_edits

SHARE = AllocatedDevice(DeviceRef("GPU-a"), 250, 10240)
WHOLE = AllocatedDevice(DeviceRef("GPU-a"), 1000, 40960)
SLICE = AllocatedDevice(DeviceRef("GPU-a", MigPlacement(0, "1g.5gb")), 125, 4864)


def given(device: AllocatedDevice) -> Allocation:
    return Allocation("uid-pod", "uid-node", "main", False, (device,))


def gpus(sharing: SharingMode) -> dict[str, Gpu]:
    return {"GPU-a": Gpu("GPU-a", 0, "A100", "ampere", 40960, sharing=sharing)}


def variables(device: AllocatedDevice, sharing: SharingMode, **annotations: str) -> dict[str, str]:
    named = {f"gpuloom.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return dict(mps_edits(given(device), gpus(sharing), named, "/run/mps").environment)


def test_a_share_on_an_mps_card_gets_its_milli_and_its_memory_as_limits() -> None:
    assert variables(SHARE, SharingMode.MPS) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/GPU-a/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M",
    }


def test_annotations_only_tighten() -> None:
    tight = variables(SHARE, SharingMode.MPS, mps_thread_percentage="10", mps_memory_mib="2048")
    wide = variables(SHARE, SharingMode.MPS, mps_thread_percentage="90", mps_memory_mib="40960")

    assert tight["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
    assert tight["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert wide == variables(SHARE, SharingMode.MPS)


def test_who_wants_no_limits_or_has_the_whole_card_only_finds_the_daemon() -> None:
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps/GPU-a/pipe"}

    assert variables(SHARE, SharingMode.MPS, enforcement="none") == pipe
    assert variables(WHOLE, SharingMode.MPS) == pipe
    assert variables(SHARE, SharingMode.NONE) == {}
    assert variables(SLICE, SharingMode.NONE, enforcement="mps") == {}


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "²", 5000 * "9"])
def test_a_limit_that_is_no_number_is_refused_and_harms_nobody_else(text: str) -> None:
    with pytest.raises(NotAllowedError, match="must be a whole number"):
        variables(SHARE, SharingMode.MPS, mps_memory_mib=text)


def test_a_pod_that_requires_limits_is_refused_where_there_are_none() -> None:
    with pytest.raises(NotAllowedError, match="no MPS daemon serves GPU GPU-a"):
        variables(SHARE, SharingMode.TIME_SLICING, enforcement="mps")
    with pytest.raises(NotAllowedError, match="must be mps or none"):
        variables(SHARE, SharingMode.MPS, enforcement="strict")
    with pytest.raises(NotAllowedError, match="whole number"):
        variables(SHARE, SharingMode.MPS, mps_memory_mib="lots")


def test_what_is_hard_limited_or_only_accounted() -> None:
    plain, mps = gpus(SharingMode.NONE)["GPU-a"], gpus(SharingMode.MPS)["GPU-a"]

    assert hardness_of(SLICE, plain, None) is Hardness.HARD
    assert hardness_of(WHOLE, plain, None) is Hardness.HARD
    assert hardness_of(SHARE, mps, None) is Hardness.LIMITED
    assert hardness_of(SHARE, plain, None) is Hardness.ACCOUNTED


def test_by_the_nodes_setting_only_who_asks_is_limited() -> None:
    cards = gpus(SharingMode.MPS)
    ask = {"gpuloom.dev/enforcement": "mps"}

    silent = mps_edits(given(SHARE), cards, {}, "/run/mps", Enforcement.NONE)
    asking = mps_edits(given(SHARE), cards, ask, "/run/mps", Enforcement.NONE)

    assert [name for name, _ in silent.environment] == ["CUDA_MPS_PIPE_DIRECTORY"]
    assert len(asking.environment) == 3


def test_what_is_told_of_a_pod_is_what_it_gets() -> None:
    shared = gpus(SharingMode.MPS)

    assert keeping_text([SHARE], shared, {}).startswith("limited")
    assert keeping_text([SHARE], shared, {"gpuloom.dev/enforcement": "none"}).startswith("accounted")
    assert keeping_text([SHARE], shared, {}, Enforcement.NONE).startswith("accounted")
    assert keeping_text([SLICE], shared, {}).startswith("hard")
    assert keeping_text([SHARE], {}, {}) == ""
