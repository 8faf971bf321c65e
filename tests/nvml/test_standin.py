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

RESET_REQUIRED = 16
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


def test_every_place_that_a_profile_may_take_is_told(opened: Standin) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    count = c_uint()

    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, PROFILE_3G, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, PROFILE_3G, places, byref(count))
    before = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, PROFILE_3G)
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, PROFILE_1G, place(1, 1))

    assert [(each.start, each.size) for each in places] == [(0, 4), (4, 4)]
    assert (before, pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, PROFILE_3G)) == (2, 1)


def test_a_compute_instance_fills_its_slice_and_gets_another_uuid_when_made_again(opened: Standin) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, PROFILE_3G, place(0, 4))
    profile = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(made, COMPUTE_PROFILE_3G, 0)

    uuids = []
    for _ in range(2):
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(made, profile.id)
        refused = code_of(pynvml.nvmlGpuInstanceCreateComputeInstance, made, profile.id)
        uuids.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)))
        count = c_uint()
        pynvml.nvmlGpuInstanceGetComputeInstances(made, profile.id, None, byref(count))
        pynvml.nvmlComputeInstanceDestroy(compute)

    assert (profile.sliceCount, profile.instanceCount, count.value) == (3, 1, 1)
    assert refused == INSUFFICIENT_RESOURCES
    assert uuids[0] != uuids[1]
    assert code_of(pynvml.nvmlGpuInstanceCreateComputeInstance, made, 0) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0) == pynvml.NVML_ERROR_NOT_FOUND


def test_an_ampere_card_takes_a_new_mode_at_its_next_reset(opened: Standin) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)

    activation = pynvml.nvmlDeviceSetMigMode(gpu, 0)
    waiting = pynvml.nvmlDeviceGetMigMode(gpu)
    opened.reset_gpu(0)

    assert (activation, waiting) == (RESET_REQUIRED, [1, 0])
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(1)) == [1, 1]


def test_a_hopper_card_takes_a_new_mode_at_once_unless_it_is_in_use(opened: Standin) -> None:
    opened.set({"all.architecture": 9, "gpu.1.processes": "1:1:1:-1:-1"})
    free, used = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))

    activations = [pynvml.nvmlDeviceSetMigMode(gpu, 0) for gpu in (free, used)]

    assert activations == [pynvml.NVML_SUCCESS, IN_USE]
    assert [pynvml.nvmlDeviceGetMigMode(gpu)[0] for gpu in (free, used)] == [0, 1]


def test_slices_keep_a_card_in_its_mode_and_die_with_a_reset(opened: Standin) -> None:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, PROFILE_3G, place(0, 4))

    activation = pynvml.nvmlDeviceSetMigMode(gpu, 0)
    opened.reset_gpu(0)
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstances(gpu, PROFILE_3G, None, byref(count))

    assert activation == IN_USE
    assert count.value == 0


def test_the_compute_mode_is_kept_and_a_cut_card_has_none(opened: Standin) -> None:
    opened.set({"gpu.1.mig.mode": 0})
    cut, whole = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))

    before = pynvml.nvmlDeviceGetComputeMode(whole)
    pynvml.nvmlDeviceSetComputeMode(whole, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    assert before == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert pynvml.nvmlDeviceGetComputeMode(whole) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert code_of(pynvml.nvmlDeviceSetComputeMode, cut, 3) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceSetComputeMode, whole, 9) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_the_clients_of_an_mps_server_are_listed_beside_it(opened: Standin) -> None:
    opened.set({"gpu.0.processes": "100:30:0:-1:-1", "gpu.0.mps_processes": "201:512:5:-1:-1"})
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)

    clients = pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu)

    assert [client.pid for client in clients] == [201]
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)] == [100]


def test_a_field_and_its_function_tell_the_same(opened: Standin) -> None:
    opened.set({"all.remapped_rows": "4 3 1 0", "all.pcie_replays": 7})
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)

    values = pynvml.nvmlDeviceGetFieldValues(gpu, [142, 143, 144, 145, 94, 83, 9999])

    assert tuple(value.value.ullVal for value in values[:4]) == pynvml.nvmlDeviceGetRemappedRows(gpu)
    assert values[4].value.ullVal == pynvml.nvmlDeviceGetPcieReplayCounter(gpu) == 7
    assert values[5].value.ullVal == pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    assert values[6].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


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
