"""The stand-in library by itself, through the real pynvml: it must answer as a driver does."""

from collections.abc import Callable, Iterator, Mapping
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped, unused-ignore]
import pytest

from tests.nvml.library import Standin, compile_library
from tests.nvml.machines import GPU_IS_LOST, mig_machine, pci, some_gpus, uuid

pytestmark = pytest.mark.real

Make = Callable[[Mapping[str, object]], Standin]

IN_USE = 19
INSUFFICIENT_RESOURCES = 23
PROFILE_1G, PROFILE_3G = 19, 9
COMPUTE_PROFILE_3G = 2


@pytest.fixture
def opened(machine: Make) -> Iterator[Standin]:
    state = machine(mig_machine(2))
    pynvml.nvmlInit()
    yield state
    pynvml.nvmlShutdown()


def place(start: int, size: int) -> Any:
    placement = pynvml.c_nvmlGpuInstancePlacement_t()
    placement.start, placement.size = start, size
    return byref(placement)


def code_of(call: Callable[..., object], *arguments: object) -> int:
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*arguments)
    return int(caught.value.value)


def test_a_gpu_is_found_by_index_uuid_and_address(opened: Standin) -> None:
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(uuid(1))
    by_pci = pynvml.nvmlDeviceGetHandleByPciBusId(pci(1))

    assert pynvml.nvmlDeviceGetIndex(by_uuid) == pynvml.nvmlDeviceGetIndex(by_pci) == 1
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-nobody") == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_slices_live_and_die_as_on_real_cards(opened: Standin) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)

    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, PROFILE_3G, place(4, 4))
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(made, COMPUTE_PROFILE_3G)
    slice_uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
    create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement

    assert slice_uuid.startswith("MIG-")
    assert code_of(create, gpu, PROFILE_1G, place(5, 1)) == INSUFFICIENT_RESOURCES
    assert code_of(create, gpu, PROFILE_3G, place(2, 4)) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlGpuInstanceDestroy, made) == IN_USE

    number = pynvml.nvmlGpuInstanceGetInfo(made).id
    opened.set({"gpu.0.processes": f"1:1:1:{number}:0"})
    assert code_of(pynvml.nvmlComputeInstanceDestroy, compute) == IN_USE
    opened.unset("gpu.0.processes")
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(made)

    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstances(gpu, PROFILE_3G, None, byref(count))
    assert count.value == 0


def test_a_card_that_is_not_cut_takes_no_slices(opened: Standin) -> None:
    opened.set({"gpu.1.mig.mode": 0})
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)

    refused = code_of(pynvml.nvmlDeviceCreateGpuInstance, gpu, PROFILE_1G)

    assert refused == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_faults_come_and_go_and_calls_are_counted(machine: Make) -> None:
    state = machine(some_gpus(2))
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    state.set({"gpu.0.fault": GPU_IS_LOST})

    lost = code_of(pynvml.nvmlDeviceGetPowerUsage, gpu)
    state.unset("gpu.0.fault")
    power_mw = pynvml.nvmlDeviceGetPowerUsage(gpu)
    pynvml.nvmlShutdown()

    assert (lost, power_mw) == (GPU_IS_LOST, 61500)
    assert state.calls()["nvmlDeviceGetPowerUsage"] == 2
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED


def test_without_a_compiler_the_tests_are_skipped_loudly_or_fail(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}

    with pytest.raises(pytest.skip.Exception, match="DID NOT RUN"):
        compile_library(tmp_path, environ=nothing)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RUN"):
        compile_library(tmp_path, environ=nothing | {"GPULOOM_REQUIRE_REAL": "1"})
