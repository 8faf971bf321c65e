"""What the NVML driver reads of working GPUs, through the real pynvml on the stand-in library."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.mig import MigPlacement
from gpuloom.model.topology import PcieLevel
from gpuloom.model.wiring import GpuWiring, NvLink, NvLinkRemote
from services.node_agent.core.readings import Activity, GpuSample, InstanceReading
from tests.nvml.drivers import CALM, QUICK, Make, a_driver, healths, read_until
from tests.nvml.machines import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN_ERROR,
    dgx1_links,
    dgx1_machine,
    mig_machine,
    nvswitch_machine,
    pci,
    seven_each,
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


async def test_a_gpu_is_found_by_the_number_of_its_device_file(machine: Make) -> None:
    """DRA drivers name GPUs so; it need not be the index."""
    machine(some_gpus(2) | {"gpu.0.minor": 5, "gpu.1.minor": 0})

    async with a_driver() as driver:
        before = driver.uuid_of_minor(0)
        await driver.read()

        assert before is None
        assert [driver.uuid_of_minor(minor) for minor in (0, 1, 5)] == [uuid(1), None, uuid(0)]


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


async def test_a_sample_is_what_the_driver_says(machine: Make) -> None:
    machine(
        some_gpus(1)
        | {
            "all.utilization_memory": 21,
            "all.utilization_encoder": 7,
            "all.utilization_decoder": 9,
            "all.pcie_replays": 3,
            "all.remapped_rows": "2 1 0 0",
            "all.field.82": 61,
            "all.field.138.4294967295": 1000,
            "all.field.139.4294967295": 24,
        }
    )

    async with a_driver() as driver:
        reading = await driver.read()

    assert reading.samples == {
        uuid(0): GpuSample(
            utilization_ratio=0.42,
            memory_utilization_ratio=0.21,
            memory_used_mib=1024,
            memory_free_mib=40960 - 1024 - 512,
            memory_reserved_mib=512,
            power_w=61.5,
            energy_j=1234.0,
            temperature_c=33.0,
            memory_temperature_c=61.0,
            sm_clock_mhz=1410,
            memory_clock_mhz=1215,
            encoder_ratio=0.07,
            decoder_ratio=0.09,
            pcie_replays=3,
            corrected_remapped_rows=2,
            uncorrected_remapped_rows=1,
            row_remap_failed=False,
            nvlink_bytes=1024 * 1024,
            ecc_uncorrected_volatile=0,
        )
    }
    assert reading.usage == (GpuUsage(uuid(0), 0.42, 1024, 61.5, 33.0),)
    assert reading.driver_version == "580.65.06"


async def test_a_value_that_the_driver_does_not_give_is_omitted(machine: Make) -> None:
    state = machine(
        some_gpus(2)
        | {
            "gpu.0.fault.nvmlDeviceGetPowerUsage": NOT_SUPPORTED,
            "gpu.0.fault.nvmlDeviceGetUtilizationRates": UNKNOWN_ERROR,
            "gpu.0.fault.nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND,
            "gpu.0.fault.nvmlDeviceGetTotalEnergyConsumption": FUNCTION_NOT_FOUND,
            "gpu.0.fault.nvmlDeviceGetRemappedRows": NOT_SUPPORTED,
        }
    )
    state.unset("all.temperature_c", "all.clock.sm_mhz", "all.clock.memory_mhz")

    async with a_driver() as driver:
        reading = await driver.read()

    assert healths(reading) == [GpuHealth.HEALTHY, GpuHealth.HEALTHY]
    assert reading.samples[uuid(0)] == GpuSample(
        memory_used_mib=1024,
        memory_free_mib=40960 - 1024 - 512,
        memory_reserved_mib=512,
        ecc_uncorrected_volatile=0,
    )
    assert reading.usage[1].power_w == 61.5


async def test_a_driver_without_fields_is_asked_value_by_value(machine: Make) -> None:
    machine(
        some_gpus(1)
        | {
            "all.fault.nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND,
            "all.pcie_replays": 3,
            "all.remapped_rows": "2 1 1 0",
        }
    )

    async with a_driver() as driver:
        reading = await driver.read()

    sample = reading.samples[uuid(0)]
    assert (sample.energy_j, sample.pcie_replays) == (1234.0, 3)
    assert (sample.corrected_remapped_rows, sample.uncorrected_remapped_rows) == (2, 1)
    assert "waits to be remapped" in reading.gpus[0].health_reason


async def test_what_moves_slowly_is_read_rarely_and_at_once_after_an_error(machine: Make) -> None:
    state = machine(some_gpus(1) | {"all.field.82": 61})

    async with a_driver(CALM) as driver:
        await driver.read()
        state.set({"all.field.82": 90, "all.energy_mj": 2000})
        soon = (await driver.read()).samples[uuid(0)]
        state.report_xid(0, 63)
        later = await read_until(
            driver, lambda reading: reading.samples[uuid(0)].memory_temperature_c == 90.0
        )

    assert (soon.memory_temperature_c, soon.energy_j) == (61.0, 2.0)
    assert later.last_xids == {DeviceRef(uuid(0)): 63}


async def test_each_gpus_links_are_told_one_by_one(machine: Make) -> None:
    machine(nvswitch_machine(2, links=2) | {"gpu.1.link.0": "down"})

    async with a_driver() as driver:
        wiring = (await driver.read()).wiring

    assert wiring[0] == GpuWiring(
        uuid(0),
        0,
        pci(0),
        links=(
            NvLink(0, NvLinkRemote.SWITCH, "00000000:C0:00.0"),
            NvLink(1, NvLinkRemote.SWITCH, "00000000:C1:00.0"),
        ),
    )
    assert [link.number for link in wiring[1].links] == [1]


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
            "gpu.0.gi.1.gpm.20": "2",
            # As a division of nothing by nothing: it is not measured.
            "gpu.0.gi.1.gpm.5": "nan",
            "gpu.0.gi.1.gpm.21": "inf",
            "gpu.0.gi.1.memory_used_mib": 777,
        }
    )
    state.put_instances("0 1 9 4 4 1 MIG-aaaa")
    device = DeviceRef(uuid(0), MigPlacement(4, "3g.20gb"))

    async with a_driver() as driver:
        at_first = await driver.read()
        reading = await driver.read()

    assert at_first.activity == {}
    assert reading.activity == {
        device: Activity(graphics_ratio=0.625, dram_ratio=0.125, pcie_sent_bytes_per_s=2.0 * 1024 * 1024)
    }
    assert reading.instances == {device: InstanceReading(1, 777, 20096 - 777)}


async def test_a_card_that_does_not_measure_activity_shows_none(machine: Make) -> None:
    machine(some_gpus(1))

    async with a_driver() as driver:
        await driver.read()
        reading = await driver.read()

    assert reading.activity == {}


async def test_slices_that_are_gone_are_noticed_at_once(machine: Make) -> None:
    state = machine(mig_machine(1))
    state.put_instances("0 1 9 4 4 1 MIG-aaaa", "0 2 19 0 1 1 MIG-bbbb")

    async with a_driver(CALM) as driver:
        await driver.read()
        state.put_instances("0 1 9 4 4 1 MIG-aaaa")
        reading = await driver.read()
        state.set({"gpu.0.mig.mode": 0})
        whole = await driver.read()

    assert [instance.uuid for instance in reading.gpus[0].mig_instances] == ["MIG-aaaa"]
    assert (whole.gpus[0].mig_enabled, whole.gpus[0].mig_instances) == (False, ())


async def test_a_node_of_eight_gpus_cut_in_seven_shows_every_slice(machine: Make) -> None:
    state = machine(mig_machine(8))
    state.put_instances(*seven_each(8))

    async with a_driver() as driver:
        reading = await driver.read()

    assert healths(reading) == [GpuHealth.HEALTHY] * 8
    assert {len(gpu.mig_instances) for gpu in reading.gpus} == {7}
    assert len(reading.instances) == 56


async def test_instances_that_may_not_be_listed_close_their_gpu(machine: Make) -> None:
    machine(mig_machine(1) | {"gpu.0.fault.nvmlDeviceGetGpuInstances": 4})

    async with a_driver() as driver:
        gpu = (await driver.read()).gpus[0]

    assert (gpu.health, gpu.mig_enabled) == (GpuHealth.UNKNOWN, True)
    assert "MIG instances can't be read" in gpu.health_reason
