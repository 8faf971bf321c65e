import math

import pytest
from hypothesis import given, settings

from gpuloom.codec.allocation import decode_allocation, encode_allocation
from gpuloom.codec.device import (
    MAX_HELD_DEVICES_PER_NODE,
    MAX_HOLDERS_PER_NODE,
    MAX_MIG_INSTANCES,
    MAX_NAME_LENGTH,
    MAX_TEXT_LENGTH,
    device_from_proto,
    device_to_proto,
    gpu_from_proto,
    gpu_to_proto,
    holder_to_proto,
    holders_from_proto,
    topology_from_proto,
    topology_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import Holder, HolderSource
from gpuloom.model.topology import PcieLevel, Topology
from gpuloom.v1 import types_pb2 as pb
from tests.effort import examples
from tests.strategies import DEVICES, HOLDERS, gpus, hostile, topologies, usages


def a_slice(start: int, slices: int) -> pb.MigInstance:
    return pb.MigInstance(placement=pb.MigPlacement(profile="1g.5gb", start=start), slices=slices)


@settings(max_examples=examples(50))
@given(gpus("GPU-a", 3))
def test_a_gpu_survives_the_wire(gpu: Gpu) -> None:
    assert gpu_from_proto(pb.Gpu.FromString(gpu_to_proto(gpu).SerializeToString())) == gpu


@settings(max_examples=examples(50))
@given(topologies())
def test_a_topology_survives_the_wire(topology: Topology) -> None:
    assert topology_from_proto(topology_to_proto(topology)) == topology


@settings(max_examples=examples(50))
@given(usages("GPU-a"))
def test_a_reading_survives_the_wire_and_what_is_unknown_stays_unknown(usage: GpuUsage) -> None:
    assert usage_from_proto(usage_to_proto(usage)) == usage


@settings(max_examples=examples(50))
@given(HOLDERS)
def test_a_holder_survives_the_wire(holder: Holder) -> None:
    assert holders_from_proto([holder_to_proto(holder)]) == (holder,)


@settings(max_examples=examples(50))
@given(DEVICES)
def test_a_device_survives_the_wire(device: DeviceRef) -> None:
    assert device_from_proto(device_to_proto(device)) == device


@settings(max_examples=examples(50))
@given(hostile(pb.Gpu))
def test_a_hostile_gpu_is_refused_or_can_be_given_out_and_believed(message: pb.Gpu) -> None:
    try:
        gpu = gpu_from_proto(message)
    except InvalidRequestError:
        return

    parts = [DeviceRef(gpu.uuid), *(DeviceRef(gpu.uuid, each.placement) for each in gpu.mig_instances)]
    for part in parts:
        record = Allocation("pod", "node", "main", False, (AllocatedDevice(part, 1, gpu.memory_mib),))
        assert decode_allocation(encode_allocation(record)) == record


@settings(max_examples=examples(50))
@given(hostile(pb.Topology))
def test_a_hostile_topology_is_refused_or_whole(message: pb.Topology) -> None:
    try:
        topology = topology_from_proto(message)
    except InvalidRequestError:
        return

    assert topology_from_proto(topology_to_proto(topology)) == topology


@settings(max_examples=examples(50))
@given(hostile(pb.GpuUsage))
def test_a_reading_that_is_no_number_is_not_known(message: pb.GpuUsage) -> None:
    try:
        usage = usage_from_proto(message)
    except InvalidRequestError:
        return

    readings = (usage.utilization_ratio, usage.power_w, usage.temperature_c)
    assert all(reading is None or math.isfinite(reading) for reading in readings)


@pytest.mark.parametrize("value", [0, 4, 99, -1])
def test_a_health_that_is_not_known_is_never_healthy(value: int) -> None:
    message = pb.Gpu(uuid="GPU-a")
    message.health = value  # type: ignore[assignment]

    assert gpu_from_proto(message).health is GpuHealth.UNKNOWN


def test_a_link_level_that_is_not_known_counts_as_unknown() -> None:
    message = pb.Topology(gpu_count=2, nvlinks=[0])
    message.pcie.append(99)  # type: ignore[arg-type]

    assert topology_from_proto(message).pcie == (PcieLevel.UNKNOWN,)


def test_a_holder_of_a_source_that_is_not_known_holds_its_devices_anyway() -> None:
    message = pb.Holder(devices=[pb.DeviceRef(gpu_uuid="GPU-a")])
    message.source = 99  # type: ignore[assignment]

    (holder,) = holders_from_proto([message])

    assert (holder.devices, holder.source) == ((DeviceRef("GPU-a"),), HolderSource.UNKNOWN)


@pytest.mark.parametrize("uuid", ["", "all", "none", "GPU-a,GPU-b", "GPU-", "GPU-" + "a" * 101, "MIG-a"])
def test_a_gpu_whose_uuid_a_runtime_could_misread_is_refused(uuid: str) -> None:
    with pytest.raises(InvalidRequestError):
        gpu_from_proto(pb.Gpu(uuid=uuid))


@pytest.mark.parametrize(
    "message",
    [
        pb.Gpu(uuid="GPU-a", index=64),
        pb.Gpu(uuid="GPU-a", memory_mib=2**24 + 1),
        pb.Gpu(uuid="GPU-a", model="x" * (MAX_NAME_LENGTH + 1)),
        pb.Gpu(uuid="GPU-a", mig_instances=[pb.MigInstance()]),
        pb.Gpu(uuid="GPU-a", mig_instances=[a_slice(start=0, slices=0)]),
        pb.Gpu(
            uuid="GPU-a",
            mig_instances=[a_slice(start=63, slices=2)],
        ),
        pb.Gpu(uuid="GPU-a", mig_instances=[a_slice(start=0, slices=1)] * (MAX_MIG_INSTANCES + 1)),
    ],
)
def test_a_gpu_beyond_its_bounds_is_refused(message: pb.Gpu) -> None:
    with pytest.raises(InvalidRequestError):
        gpu_from_proto(message)


def test_a_text_for_people_is_cut_short_instead_of_refused() -> None:
    gpu = gpu_from_proto(pb.Gpu(uuid="GPU-a", health_reason="why " * 1000))

    assert len(gpu.health_reason) == MAX_TEXT_LENGTH
    assert gpu.health_reason.endswith("…")


def test_a_holder_without_devices_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="without devices"):
        holders_from_proto([pb.Holder()])


def test_more_holders_or_devices_than_a_node_can_have_are_refused() -> None:
    device = pb.DeviceRef(gpu_uuid="GPU-a")
    many = [pb.Holder(devices=[device])] * (MAX_HOLDERS_PER_NODE + 1)
    large = [pb.Holder(devices=[device] * (MAX_HELD_DEVICES_PER_NODE + 1))]

    for messages in (many, large):
        with pytest.raises(InvalidRequestError, match="at most"):
            holders_from_proto(messages)
