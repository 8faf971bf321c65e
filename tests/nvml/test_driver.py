"""What the NVML driver reads of working GPUs, through the real pynvml on the stand-in library."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.mig import MigPlacement
from gpuloom.model.topology import PcieLevel
from services.node_agent.nvml.gpm import Activity
from services.node_agent.nvml.usage import Process
from tests.nvml.drivers import QUICK, Make, a_driver, healths
from tests.nvml.machines import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN_ERROR,
    dgx1_links,
    dgx1_machine,
    mig_machine,
    nvswitch_machine,
    pci,
    some_gpus,
    uuid,
)

pytestmark = pytest.mark.real


async def test_a_gpu_is_described_as_catalogue_kernel_and_driver_know_it(
    machine: Make, tmp_path: Path
) -> None:
    machine(some_gpus(2))
    device = tmp_path / "sys/bus/pci/devices/0000:11:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")

    async with a_driver(replace(QUICK, sysfs=tmp_path / "sys")) as driver:
        reading = await driver.read()

    assert reading.gpus[1] == Gpu(
        uuid=uuid(1),
        index=1,
        model="A100-SXM4-40GB",
        architecture="ampere",
        memory_mib=40960,
        health=GpuHealth.HEALTHY,
        pci_bus_id=pci(1),
        numa_node=1,
        serial="SN1",
    )
    assert reading.gpus[0].numa_node is None


async def test_a_gpu_that_the_catalogue_lacks_keeps_the_drivers_name(machine: Make) -> None:
    machine(some_gpus(1, "NVIDIA Prototype 9000"))

    async with a_driver() as driver:
        reading = await driver.read()

    assert (reading.gpus[0].model, reading.gpus[0].architecture) == ("NVIDIA Prototype 9000", "ampere")


@pytest.mark.parametrize("count", [8, 16])
async def test_behind_nvswitch_every_pair_has_all_links(machine: Make, count: int) -> None:
    machine(nvswitch_machine(count))

    async with a_driver() as driver:
        topology = (await driver.read()).topology

    assert topology is not None
    assert topology.nvswitch
    assert set(topology.nvlinks) == {12}


async def test_direct_links_are_counted_per_pair(machine: Make) -> None:
    machine(dgx1_machine())

    async with a_driver() as driver:
        topology = (await driver.read()).topology

    assert topology is not None
    assert not topology.nvswitch
    assert topology.nvlinks == tuple(dgx1_links(a, b) for a, b in combinations(range(8), 2))
    assert [topology.pcie_level(0, b) for b in (1, 2, 4)] == [PcieLevel.PIX, PcieLevel.PHB, PcieLevel.SYS]


async def test_a_pcie_machine_has_no_links(machine: Make) -> None:
    machine(some_gpus(4, "NVIDIA A10") | {"ancestor": 40})

    async with a_driver() as driver:
        topology = (await driver.read()).topology

    assert topology is not None
    assert set(topology.nvlinks) == {0}
    assert set(topology.pcie) == {PcieLevel.NODE}


async def test_links_that_carry_no_peer_traffic_do_not_count(machine: Make) -> None:
    machine(nvswitch_machine(3) | {"p2p.2.0.1": 5})

    async with a_driver() as driver:
        topology = (await driver.read()).topology

    assert topology is not None
    assert topology.nvlinks == (0, 12, 12)


async def test_usage_is_what_the_driver_says(machine: Make) -> None:
    machine(some_gpus(1))

    async with a_driver() as driver:
        usage = (await driver.read()).usage[0]
        sample = driver.samples()[uuid(0)]

    assert (usage.utilization_ratio, usage.memory_used_mib) == (0.42, 1024)
    assert (usage.power_w, usage.temperature_c) == (61.5, 33.0)
    assert (sample.energy_j, sample.sm_clock_mhz, sample.memory_clock_mhz) == (1234.0, 1410, 1215)
    assert (sample.memory_free_mib, sample.memory_reserved_mib) == (40960 - 1024 - 512, 512)


async def test_a_value_that_the_driver_does_not_give_is_omitted(machine: Make) -> None:
    state = machine(
        some_gpus(2)
        | {
            "gpu.0.fault.nvmlDeviceGetPowerUsage": NOT_SUPPORTED,
            "gpu.0.fault.nvmlDeviceGetUtilizationRates": UNKNOWN_ERROR,
            "gpu.0.fault.nvmlDeviceGetTotalEnergyConsumption": FUNCTION_NOT_FOUND,
        }
    )
    state.unset("all.temperature_c", "all.clock.sm_mhz")

    async with a_driver() as driver:
        reading = await driver.read()
        sample = driver.samples()[uuid(0)]

    assert healths(reading) == [GpuHealth.HEALTHY, GpuHealth.HEALTHY]
    assert (sample.power_w, sample.utilization_ratio, sample.energy_j) == (None, None, None)
    assert (sample.temperature_c, sample.sm_clock_mhz) == (None, None)
    assert reading.usage[1].power_w == 61.5


async def test_processes_are_listed_with_memory_and_share(machine: Make) -> None:
    machine(some_gpus(2) | {"gpu.0.processes": "4711:2048:70:-1:-1,815:512:5:-1:-1"})

    async with a_driver() as driver:
        await driver.read()
        processes = driver.processes()

    assert processes[uuid(0)] == (Process(815, 512, 0.05, None), Process(4711, 2048, 0.7, None))
    assert processes[uuid(1)] == ()


async def test_mig_instances_are_shown_with_their_places(machine: Make) -> None:
    state = machine(mig_machine(2) | {"gpu.1.mig.mode": 0})
    state.put_instances("0 1 9 4 4 1 MIG-aaaa", "0 7 19 0 1 1 MIG-bbbb", "0 8 19 1 1 0 MIG-cccc")

    async with a_driver() as driver:
        reading = await driver.read()
        device = driver.device_of_id("MIG-aaaa")

    cut, whole = reading.gpus
    assert [(i.placement, i.slices, i.uuid) for i in cut.mig_instances] == [
        (MigPlacement(0, "1g.5gb"), 1, "MIG-bbbb"),
        (MigPlacement(1, "1g.5gb"), 1, ""),
        (MigPlacement(4, "3g.20gb"), 4, "MIG-aaaa"),
    ]
    assert (cut.mig_enabled, whole.mig_enabled, whole.mig_instances) == (True, False, ())
    assert device == DeviceRef(uuid(0), MigPlacement(4, "3g.20gb"))
    # A cut GPU has no utilisation of its own.
    assert [usage.utilization_ratio for usage in reading.usage] == [None, 0.42]


async def test_the_activity_of_slices_is_measured_between_two_looks(machine: Make) -> None:
    state = machine(
        mig_machine(1)
        | {
            "all.gpm": 1,
            "gpu.0.gi.1.gpm.1": "62.5",
            "gpu.0.gi.1.gpm.10": "12.5",
            "gpu.0.gi.1.memory_used_mib": 777,
        }
    )
    state.put_instances("0 1 9 4 4 1 MIG-aaaa")
    device = DeviceRef(uuid(0), MigPlacement(4, "3g.20gb"))

    async with a_driver() as driver:
        await driver.read()
        at_first = driver.activity()
        await driver.read()
        activity, memory_mib = driver.activity(), driver.instance_memory_mib()

    assert at_first == {}
    assert activity == {device: Activity(graphics_ratio=0.625, dram_ratio=0.125)}
    assert memory_mib == {device: 777}


async def test_a_card_that_does_not_measure_activity_shows_none(machine: Make) -> None:
    machine(some_gpus(1))

    async with a_driver() as driver:
        await driver.read()
        await driver.read()

        assert driver.activity() == {}


async def test_instances_that_may_not_be_listed_close_their_gpu(machine: Make) -> None:
    machine(mig_machine(1) | {"gpu.0.fault.nvmlDeviceGetGpuInstances": 4})

    async with a_driver() as driver:
        gpu = (await driver.read()).gpus[0]

    assert (gpu.health, gpu.mig_enabled) == (GpuHealth.UNKNOWN, True)
    assert "MIG instances can't be read" in gpu.health_reason


async def test_a_look_makes_few_calls(machine: Make) -> None:
    state = machine(nvswitch_machine(8))

    async with a_driver(replace(QUICK, process_interval_s=60)) as driver:
        await driver.read()
        before = sum(state.calls().values()) - state.calls().get("nvmlEventSetWait_v2", 0)
        await driver.read()
        after = sum(state.calls().values()) - state.calls().get("nvmlEventSetWait_v2", 0)

    assert (after - before) / 8 <= 12
