"""Which devices of resource claims are GPUs, and which ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.device import MAX_NAME_LENGTH
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigInstance, MigPlacement
from services.node_agent.core.claims import ClaimedDevice, GpuClaims
from services.node_agent.nvml.core.device_ids import device_of

CARD = "GPU-11111111-2222-3333-4444-555555555555"
CUT = "GPU-aaaaaaaa-2222-3333-4444-555555555555"
SLICE = MigInstance(MigPlacement(4, "1g.10gb"), 1, 9_856, "MIG-bbbbbbbb-2222-3333-4444-555555555555")

CLAIMS = GpuClaims(lambda name: device_of(name, {CUT: (SLICE,)}), {0: CUT, 3: CARD}.get)


def claimed(name: str, *cdi_names: str, driver: str = "gpu.nvidia.com") -> ClaimedDevice:
    return ClaimedDevice(driver, "n1", name, cdi_names)


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        (claimed("gpu-3", "k8s.gpu.nvidia.com/device=gpu-3"), DeviceRef(CARD)),
        (claimed("gpu-0-mig-1g10gb-19-4"), DeviceRef(CUT)),
        (claimed("gpu-7", f"nvidia.com/gpu={CARD}"), DeviceRef(CARD)),
        (claimed("gpu-7", f"k8s.gpu.nvidia.com/claim=c1-{CARD.lower()}"), DeviceRef(CARD)),
        (claimed(CARD.lower()), DeviceRef(CARD)),
        (claimed("mig", f"nvidia.com/gpu={SLICE.uuid}"), DeviceRef(CUT, SLICE.placement)),
        (claimed("any", f"nvidia.com/gpu={CARD}", driver="other.example.com"), DeviceRef(CARD)),
    ],
)
def test_a_gpu_is_known_by_a_uuid_in_its_names_or_by_its_minor_number(
    device: ClaimedDevice, gpu: DeviceRef
) -> None:
    assert CLAIMS.gpu_of(device) == gpu


@pytest.mark.parametrize(
    "device",
    [
        claimed("gpu-7"),
        claimed("vfio-3"),
        claimed("gpu-3-mig"),
        claimed("a", "amd.com/gpu=0", driver="gpu.amd.com"),
        claimed("a", "nvidia.com/gpu=all", driver="other.example.com"),
    ],
)
def test_a_gpu_that_can_not_be_told_keeps_its_driver_s_name_for_it(device: ClaimedDevice) -> None:
    assert CLAIMS.gpu_of(device) == DeviceRef(f"{device.driver}/n1/{device.name}")


@pytest.mark.parametrize(
    "device",
    [
        claimed("eth1", "k8s.dra.net/device=eth1", driver="dra.net"),
        claimed("channel-0", "k8s.compute-domain.nvidia.com/claim=c1", driver="compute-domain.nvidia.com"),
        claimed("gpu-3", driver="simulator.example.com"),
        claimed("nic", "vendor.com/gpu-nic=0", driver="nic.example.com"),
    ],
)
def test_what_another_driver_gives_is_no_gpu_unless_a_cdi_name_says_so(device: ClaimedDevice) -> None:
    assert CLAIMS.gpu_of(device) is None


def test_which_drivers_give_gpus_can_be_said() -> None:
    claims = GpuClaims(uuid_of_minor={3: CARD}.get, drivers=frozenset({"gpu.example.com"}))

    assert claims.gpu_of(claimed("gpu-3", driver="gpu.example.com")) == DeviceRef(CARD)
    assert claims.gpu_of(claimed("gpu-3")) is None


@given(st.builds(ClaimedDevice, *[st.text(max_size=63)] * 3, st.tuples(st.text(max_size=300))))
def test_whatever_a_driver_calls_its_devices_a_gpu_has_a_name_that_readers_take(
    device: ClaimedDevice,
) -> None:
    gpu = CLAIMS.gpu_of(ClaimedDevice("gpu.nvidia.com", device.pool * 5, device.name, device.cdi_names))

    assert gpu is not None
    assert 0 < len(gpu.gpu_uuid) <= MAX_NAME_LENGTH
