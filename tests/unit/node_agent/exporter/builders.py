"""Nodes and pictures for the exporter, small or with everything in them."""

from dataclasses import dataclass, replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodRef
from gpuloom.model.process import GpuProcess
from services.node_agent.core.picture import Picture
from services.node_agent.core.readings import Activity, DriverReading, GpuCounters, GpuSample, InstanceReading

A_DEVICE = DeviceRef("GPU-a")
MIG_GPU = "GPU-mig"
SLICES = (MigPlacement(0, "3g.40gb"), MigPlacement(4, "1g.10gb"))
A_SAMPLE = GpuSample(
    utilization_ratio=0.8,
    memory_utilization_ratio=0.3,
    memory_used_mib=10_000,
    memory_free_mib=70_000,
    memory_reserved_mib=559,
    power_w=300.0,
    energy_j=123.456,
    temperature_c=61.0,
    memory_temperature_c=70.0,
    sm_clock_mhz=1410,
    memory_clock_mhz=1593,
    encoder_ratio=0.05,
    decoder_ratio=0.1,
    pcie_replays=3,
    corrected_remapped_rows=1,
    uncorrected_remapped_rows=2,
    row_remap_failed=False,
    nvlink_bytes=4096,
    ecc_uncorrected_volatile=4,
    clock_event_reasons=1,
    counters=GpuCounters(**{name: 100 + place for place, name in enumerate(GpuCounters.__slots__)}),
)
AN_ACTIVITY = Activity(0.9, 0.7, 0.25, 0.5, 1e9, 2e9)


@dataclass
class FakeNode:
    """A node as the exporter sees it, whose looks the test makes."""

    picture: Picture | None = None
    stale: str | None = None
    node_name: str = "n1"

    @property
    def state(self) -> NodeState:
        return a_state(node_name=self.node_name) if self.picture is None else self.picture.state

    def stale_reason(self) -> str | None:
        return self.stale


def a_card(uuid: str = "GPU-a", index: int = 0, **changes: Any) -> Gpu:
    card = Gpu(uuid, index, "A100-SXM4-80GB", "ampere", 81_920, GpuHealth.HEALTHY)
    return replace(card, pci_bus_id=f"00000000:{index + 1:02X}:00.0", **changes)


def a_cut_card(index: int = 1) -> Gpu:
    big, small = SLICES
    instances = (MigInstance(big, 4, 40_192, "MIG-1"), MigInstance(small, 1, 9_728, "MIG-2"))
    return a_card(MIG_GPU, index, mig_enabled=True, mig_instances=instances)


def a_state(*gpus: Gpu, holders: tuple[Holder, ...] = (), node_name: str = "n1") -> NodeState:
    return NodeState(node_name, "uid-n1", NodeMode.NVIDIA, Delivery.DEVICE_PLUGIN, gpus=gpus, holders=holders)


def a_holder(name: str, *devices: DeviceRef, container: str = "main", **changes: Any) -> Holder:
    holder = Holder(PodRef("team-a", name, f"uid-{name}"), container, devices, HolderSource.KUBELET)
    return replace(holder, **changes)


def a_process(pod: str = "", device: DeviceRef = A_DEVICE, **changes: Any) -> GpuProcess:
    owner = PodRef("team-a", pod, f"uid-{pod}") if pod else None
    process = GpuProcess(1, "python", device, pod=owner, container="main" if pod else "")
    return replace(process, **changes)


def a_picture(
    *gpus: Gpu,
    holders: tuple[Holder, ...] = (),
    processes: tuple[GpuProcess, ...] = (),
    node_name: str = "n1",
    **reading: Any,
) -> Picture:
    """Every card gives the same sample, unless the test says otherwise."""
    cards = gpus or (a_card(),)
    answered = {card.uuid: A_SAMPLE for card in cards if card.health is not GpuHealth.LOST}
    values: dict[str, Any] = {"samples": answered, "driver_version": "550.54.15", **reading}
    driver = DriverReading(cards, (), None, **values)
    return Picture(a_state(*cards, holders=holders, node_name=node_name), driver, processes, 0.0)


def a_full_picture(node_name: str = "n1") -> Picture:
    """Whole, shared, cut and lost cards, and names that need care."""
    whole, shared, lost = a_card(), a_card("GPU-b", 2), a_card("GPU-c", 3, health=GpuHealth.LOST)
    big, small = (DeviceRef(MIG_GPU, placement) for placement in SLICES)
    return a_picture(
        replace(whole, model='NVIDIA "odd"\\card\nπ'),
        a_cut_card(),
        shared,
        lost,
        holders=(
            a_holder("whole.pod-0", DeviceRef("GPU-a")),
            a_holder("left", DeviceRef("GPU-b")),
            a_holder("right", DeviceRef("GPU-b")),
            a_holder("sliced", big),
        ),
        processes=(
            a_process("left", DeviceRef("GPU-b"), pid=2, sm_ratio=0.6, memory_mib=3000),
            a_process("right", DeviceRef("GPU-b"), pid=3, sm_ratio=0.2, memory_mib=1000),
        ),
        activity={DeviceRef("GPU-a"): AN_ACTIVITY, big: AN_ACTIVITY},
        instances={big: InstanceReading(1, 4_000, 36_192), small: InstanceReading(7, 0, 9_728)},
        last_xids={DeviceRef("GPU-c"): 79, small: 43},
        node_name=node_name,
    )


def values_of(text: bytes, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples of one metric, by these labels."""
    found: dict[tuple[str, ...], float] = {}
    # Told of a counter, the parser would add `_total` to names that have none.
    untyped = "\n".join(line for line in text.decode().split("\n") if not line.startswith("#"))
    for family in text_string_to_metric_families(untyped):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels.get(label, "") for label in labels)
                assert key not in found
                found[key] = sample.value
    return found
