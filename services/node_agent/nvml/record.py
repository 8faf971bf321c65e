"""What is kept of a node's GPUs across restarts of the agent, as text. Pure.

It holds for one boot of the machine: times are those of the kernel's monotonic clock, and a reboot is a
fresh start for every GPU. Whatever else is found in its place is refused with a reason.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from gpuloom.model.mig import MigInstance, MigPlacement
from services.node_agent.nvml.core.health import Condition, XidFault
from services.node_agent.nvml.inventory import Identity

VERSION = 1

T = TypeVar("T")


class RecordError(Exception):
    """The text is no record of this boot. The message says why."""


@dataclass(frozen=True, slots=True)
class KeptGpu:
    """`instance_ids` has the driver's number of each MIG instance."""

    identity: Identity
    index: int
    condition: Condition
    mig_enabled: bool = False
    instances: tuple[MigInstance, ...] = ()
    instance_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    gpus: tuple[KeptGpu, ...] = ()


def encode(record: Record, boot_id: str) -> str:
    return json.dumps({"version": VERSION, "boot_id": boot_id, **asdict(record)}, indent=1)


def decode(text: str, boot_id: str) -> Record:
    """Raise RecordError if this is not a record that was made in this boot by an agent no newer than this."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError("it is not JSON") from error
    if not isinstance(found, dict):
        raise RecordError("it is not an object")
    if found.get("version") != VERSION:
        raise RecordError(f"its version is {found.get('version')!r:.40}, not {VERSION}")
    if found.get("boot_id") != boot_id:
        raise RecordError("it was made before the last reboot")
    record = Record(tuple(_gpu(entry) for entry in _get(found, "gpus", list)))
    indices, uuids = {gpu.index for gpu in record.gpus}, {gpu.identity.uuid for gpu in record.gpus}
    if not len(indices) == len(uuids) == len(record.gpus):
        raise RecordError("two GPUs share an index or a UUID")
    return record


def _gpu(entry: Any) -> KeptGpu:
    identity, condition = _get(entry, "identity", dict), _get(entry, "condition", dict)
    kept = KeptGpu(
        identity=Identity(
            uuid=_get(identity, "uuid", str),
            model=_get(identity, "model", str),
            architecture=_get(identity, "architecture", str),
            memory_mib=_natural(identity, "memory_mib"),
            pci_bus_id=_get(identity, "pci_bus_id", str),
            numa_node=None if identity.get("numa_node") is None else _natural(identity, "numa_node"),
            serial=_get(identity, "serial", str),
            product=_get(identity, "product", str),
            # Records of before have none; it is read again with the GPU.
            minor=None if identity.get("minor") is None else _natural(identity, "minor"),
        ),
        index=_natural(entry, "index"),
        condition=Condition(
            faults=tuple(_fault(fault) for fault in _get(condition, "faults", list)),
            was_lost=_get(condition, "was_lost", bool),
        ),
        mig_enabled=_get(entry, "mig_enabled", bool),
        instances=tuple(_instance(instance) for instance in _get(entry, "instances", list)),
        instance_ids=tuple(_number(number) for number in _get(entry, "instance_ids", list)),
    )
    if len(kept.instances) != len(kept.instance_ids):
        raise RecordError("not every MIG instance has its number")
    return kept


def _fault(entry: Any) -> XidFault:
    at_s = _get(entry, "at_s", float)
    if not math.isfinite(at_s):
        raise RecordError("a fault has no time")
    placement = None if entry.get("placement") is None else _placement(entry["placement"])
    return XidFault(_natural(entry, "xid"), at_s, placement, _get(entry, "instance_uuid", str))


def _instance(entry: Any) -> MigInstance:
    placement = _placement(_get(entry, "placement", dict))
    return MigInstance(
        placement, _natural(entry, "slices"), _natural(entry, "memory_mib"), _get(entry, "uuid", str)
    )


def _placement(entry: Any) -> MigPlacement:
    return MigPlacement(_natural(entry, "start"), _get(entry, "profile", str))


def _natural(entry: Any, key: str) -> int:
    return _number(_get(entry, key, int))


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise RecordError(f"{value!r:.40} is no number of anything")
    return value


def _get(entry: Any, key: str, kind: type[T]) -> T:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind):
        raise RecordError(f"{key} is missing or of the wrong kind")
    return value
