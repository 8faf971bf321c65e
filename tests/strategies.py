"""Random values of the shared model, small enough to collide often, and random messages that mean no good."""

from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.ledger import (
    Claim,
    Decision,
    EntryState,
    HostAccount,
    LedgerEntry,
    NodeLedger,
    Verdict,
)
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodPresence, PodRef
from gpuloom.model.snapshot import ClosedGpu, NodeFacts, NodePlace, PodAllocation, Taint
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.model.topology import PcieLevel, Topology, pair_count

AnyMessage = TypeVar("AnyMessage", bound=Message)

NAMES = st.sampled_from(["", "a", "train-0", "ü", "x" * 253])
TEXTS = st.sampled_from(["", "it broke", "reason " * 100])
GPU_UUIDS = [f"GPU-{letter}" for letter in "abcdef"]
READINGS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
PLACEMENTS = st.builds(
    MigPlacement, start=st.integers(0, 60), profile=st.sampled_from(["1g.5gb", "1g.5gb+me"])
)
INSTANCES = st.builds(
    MigInstance,
    placement=PLACEMENTS,
    slices=st.integers(1, 4),
    memory_mib=st.integers(0, 2**24),
    uuid=NAMES,
    fault=TEXTS,
)
DEVICES = st.builds(DeviceRef, gpu_uuid=st.sampled_from(GPU_UUIDS), mig=st.none() | PLACEMENTS)
PODS = st.builds(PodRef, namespace=NAMES, name=NAMES, uid=NAMES)
HOLDERS = st.builds(
    Holder,
    pod=PODS,
    container=NAMES,
    devices=st.lists(DEVICES, min_size=1, max_size=3).map(tuple),
    source=st.sampled_from(HolderSource),
    pids=st.lists(st.integers(0, 2**32 - 1), max_size=2).map(tuple),
    given=st.integers(0, 5),
)
PRESENCES = st.builds(
    PodPresence,
    pod_uids=st.lists(st.sampled_from(["u-a", "u-b", "u-c"]), unique=True).map(tuple),
    unknown_reason=TEXTS,
    boot_id=NAMES,
    listed_at_ms=st.integers(0, 2**64 - 1),
)
ALLOCATED = st.builds(
    AllocatedDevice, device=DEVICES, milli=st.integers(1, 1000), memory_mib=st.integers(0, 2**24)
)
TIMES = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 (timezones adds the zone)
SPOT_NOTICES = st.builds(
    SpotNotice, kind=st.sampled_from(SpotNoticeKind), time=st.none() | TIMES, cloud=NAMES, action=NAMES
)
DECISIONS = st.builds(
    Decision,
    time=TIMES,
    pod=PODS,
    verdict=st.sampled_from(Verdict),
    node_name=NAMES,
    devices=st.lists(ALLOCATED, max_size=3).map(tuple),
    reason=TEXTS,
)
ENTRIES = st.builds(
    LedgerEntry,
    pod=PODS,
    node_name=NAMES,
    node_uid=NAMES,
    state=st.sampled_from(EntryState),
    devices=st.none() | st.lists(ALLOCATED, min_size=1, max_size=3).map(tuple),
    advisory=st.booleans(),
)
AMOUNTS = st.integers(0, 2**63)
NODE_LEDGERS = st.builds(
    NodeLedger,
    node_name=st.sampled_from(["n1", "x" * 253]),
    node_uid=st.just("uid"),
    claims=st.lists(
        st.builds(
            Claim,
            pod=PODS,
            state=st.sampled_from(EntryState),
            devices=st.none() | st.lists(ALLOCATED, max_size=2).map(tuple),
            wanted=st.none() | st.integers(0, 9),
            advisory=st.booleans(),
            confirmed=st.booleans(),
            problem=TEXTS,
            mode=st.sampled_from(NodeMode),
            unlisted=st.lists(st.sampled_from(["", "1g.5gb"]), max_size=2).map(tuple),
            unreserved=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    vanished=st.lists(PODS, max_size=2).map(tuple),
    account=st.none() | st.builds(HostAccount, *([AMOUNTS] * 6)),
    closed_reason=TEXTS,
)


def gpus(uuid: str, index: int) -> st.SearchStrategy[Gpu]:
    return st.builds(
        Gpu,
        uuid=st.just(uuid),
        index=st.just(index),
        model=NAMES,
        architecture=NAMES,
        memory_mib=st.integers(0, 2**24),
        health=st.sampled_from(GpuHealth),
        health_reason=TEXTS,
        pci_bus_id=NAMES,
        numa_node=st.none() | st.integers(0, 7),
        serial=NAMES,
        mig_enabled=st.booleans(),
        mig_instances=st.lists(INSTANCES, max_size=2).map(tuple),
    )


def usages(uuid: str) -> st.SearchStrategy[GpuUsage]:
    return st.builds(
        GpuUsage,
        gpu_uuid=st.just(uuid),
        utilization_ratio=READINGS,
        memory_used_mib=st.none() | st.integers(0, 2**64 - 1),
        power_w=READINGS,
        temperature_c=READINGS,
    )


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    count = draw(st.integers(0, 4))
    pairs = pair_count(count)
    levels = draw(st.lists(st.sampled_from(PcieLevel), min_size=pairs, max_size=pairs))
    links = draw(st.lists(st.integers(0, 18), min_size=pairs, max_size=pairs))
    return Topology(count, tuple(levels), tuple(links), draw(st.booleans()))


@st.composite
def node_states(draw: st.DrawFn, name: str = "node-1", uids: tuple[str, ...] = ("", "u1", "u2")) -> NodeState:
    """A state as an agent makes it: GPUs by index, one reading per GPU by UUID."""
    uuids = draw(st.lists(st.sampled_from(GPU_UUIDS), unique=True, max_size=3))
    indexes = draw(st.lists(st.integers(0, 63), unique=True, min_size=len(uuids), max_size=len(uuids)))
    places = zip(uuids, sorted(indexes), strict=True)
    return NodeState(
        node_name=name,
        node_uid=draw(st.sampled_from(uids)),
        mode=draw(st.sampled_from(NodeMode)),
        delivery=draw(st.sampled_from(Delivery)),
        gpus=tuple(draw(gpus(uuid, index)) for uuid, index in places),
        topology=draw(st.none() | topologies()),
        holders=tuple(draw(st.lists(HOLDERS, max_size=2))),
        holders_unknown_reason=draw(TEXTS),
        usage=tuple(draw(usages(uuid)) for uuid in sorted(uuids)),
        spot=draw(st.none() | SPOT_NOTICES),
        driver_problem=draw(TEXTS),
        presence=draw(PRESENCES),
    )


NODE_PLACES = st.builds(
    NodePlace,
    zone=NAMES,
    rack=NAMES,
    nvlink_domain=NAMES,
    capacity_type=NAMES,
    unschedulable=st.booleans(),
    taints=st.lists(st.builds(Taint, NAMES, NAMES, NAMES), max_size=2).map(tuple),
    cpu_milli=st.integers(0, 2**40),
    memory_bytes=st.integers(0, 2**50),
    provider_id=NAMES,
    labels=st.dictionaries(NAMES, st.sampled_from(["", "ü", "x" * 63]), max_size=2).map(
        lambda labels: tuple(sorted(labels.items()))
    ),
)
NODE_FACTS = st.builds(
    NodeFacts,
    state=node_states(),
    untrusted_reasons=st.lists(TEXTS, max_size=3).map(tuple),
    closed_gpus=st.lists(st.builds(ClosedGpu, st.sampled_from(GPU_UUIDS), TEXTS), max_size=2).map(tuple),
    place=NODE_PLACES,
    allocations=st.lists(
        st.builds(PodAllocation, PODS, NAMES, st.lists(ALLOCATED, max_size=2).map(tuple), st.booleans()),
        max_size=2,
    ).map(tuple),
    details=st.lists(TEXTS, max_size=2).map(tuple),
    agent_address=NAMES,
)

_HOSTILE_TEXTS = [
    "",
    "GPU-a",
    "GPU-b",
    "all",
    "GPU-a,GPU-b",
    "1g.5gb",
    "u1",
    "x" * 254,
    "y" * 1100,
    "\0\n\u202e",
]
_HOSTILE_NUMBERS = [0, 1, 2, 7, 63, 64, 1000, 1001, 2**31 - 1]
_HOSTILE: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_STRING: _HOSTILE_TEXTS,
    FieldDescriptor.TYPE_BOOL: [False, True],
    FieldDescriptor.TYPE_DOUBLE: [0.0, -1.0, 0.5, 1e308, float("inf"), float("-inf"), float("nan")],
    FieldDescriptor.TYPE_ENUM: [-1, 0, 1, 2, 3, 4, 99, 2**31 - 1],
    FieldDescriptor.TYPE_UINT64: [*_HOSTILE_NUMBERS, 2**64 - 1],
    FieldDescriptor.TYPE_INT64: [*_HOSTILE_NUMBERS, -(2**63), 2**63 - 1],
    FieldDescriptor.TYPE_UINT32: [*_HOSTILE_NUMBERS, 2**32 - 1],
    FieldDescriptor.TYPE_INT32: [*_HOSTILE_NUMBERS, -(2**31)],
}


def hostile(kind: type[AnyMessage]) -> st.SearchStrategy[AnyMessage]:
    """Well-formed messages with any content: unknown enum values, extremes, absent and repeated parts."""
    return st.randoms(use_true_random=False).map(lambda chance: _filled(kind(), chance))


def _filled(message: AnyMessage, chance: Any) -> AnyMessage:
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.2:
            continue
        if not field.is_repeated:
            _fill(message, field, chance)
            continue
        values = getattr(message, field.name)
        for _ in range(chance.choice([0, 1, 1, 2])):
            if field.message_type is None:
                values.append(_hostile_value(field, chance))
            elif field.message_type.GetOptions().map_entry:
                key, value = (_hostile_value(part, chance) for part in field.message_type.fields)
                values[key] = value
            else:
                _filled(values.add(), chance)
    return message


def _fill(message: Message, field: Any, chance: Any) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        part = getattr(message, field.name)
        part.SetInParent()
        _filled(part, chance)
    else:
        setattr(message, field.name, _hostile_value(field, chance))


def _hostile_value(field: Any, chance: Any) -> Any:
    return chance.choice(_HOSTILE[field.type])
