"""The allocation annotation: the only record of which devices a pod was given.

Decides whether a text is such a record; anything doubtful is an InvalidRequestError, because a record that is
half understood could give a device to two pods. Never decides whether the devices exist.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

import orjson

from gpuloom.codec.fields import JsonObject, as_object, list_field, shown
from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.model.allocation import ALLOCATION_VERSION, AllocatedDevice, Allocation
from gpuloom.model.gpu import GPU_UUID, MILLI_PER_GPU, DeviceRef
from gpuloom.model.mig import MigPlacement

MAX_BYTES = 16 * 1024
MAX_DEVICES = 64
MAX_MEMORY_MIB = 2**24
MAX_MIG_START = 63
KEPT_TEXTS = 1024

_FIELDS = frozenset({"v", "pod", "node", "container", "advisory", "devices"})
_DEVICE_FIELDS = frozenset({"uuid", "milli", "mib", "mig"})
_MIG_FIELDS = frozenset({"profile", "start"})

# The UUIDs end up in a list with commas that a container runtime reads, where "all" means every GPU: a name
# that is not plainly a GPU's is refused here.
MIG_PROFILE = re.compile(r"[a-z0-9.+-]{1,32}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,253}")


def encode_allocation(allocation: Allocation) -> str:
    """Compact JSON; equal allocations give equal text."""
    document = {
        "v": ALLOCATION_VERSION,
        "pod": allocation.pod_uid,
        "node": allocation.node_uid,
        "container": allocation.container,
        "advisory": allocation.advisory,
        "devices": [_device_to_json(device) for device in allocation.devices],
    }
    return orjson.dumps(document).decode()


@lru_cache(maxsize=KEPT_TEXTS)
def decode_allocation(text: str) -> Allocation:
    """Raise InvalidRequestError, with the reason, for anything but a well-formed record of this version.

    The same text comes with everything that happens to its pod.
    """
    document = _document(text)
    version = document.get("v")
    if type(version) is not int or version != ALLOCATION_VERSION:
        raise InvalidRequestError(
            f"allocation version {shown(version)} is not known; this is {ALLOCATION_VERSION}"
        )
    _refuse_other_fields(document, _FIELDS, "allocation")
    advisory = document.get("advisory")
    if not isinstance(advisory, bool):
        raise InvalidRequestError("allocation.advisory must be true or false")
    entries = list_field(document, "devices", "allocation")
    if not 1 <= len(entries) <= MAX_DEVICES:
        raise InvalidRequestError(f"an allocation has 1 to {MAX_DEVICES} devices, not {len(entries)}")
    devices = tuple(_device(entry, f"allocation.devices[{i}]") for i, entry in enumerate(entries))
    _refuse_overlap(devices)
    return Allocation(
        pod_uid=_matching(document, "pod", _IDENTIFIER, "allocation"),
        node_uid=_matching(document, "node", _IDENTIFIER, "allocation"),
        container=_matching(document, "container", _IDENTIFIER, "allocation"),
        advisory=advisory,
        devices=devices,
    )


def believable(allocation: Allocation, pod_uid: str, node_uid: str) -> str | None:
    """Why this record must not be believed for that pod on that node, or None."""
    if not pod_uid or allocation.pod_uid != pod_uid:
        return "the allocation names another pod"
    if not node_uid or allocation.node_uid != node_uid:
        return "the allocation names another node"
    return None


def visible_devices(allocation: Allocation, mig_uuids: Mapping[DeviceRef, str] | None = None) -> str:
    """UUIDs with commas between, in the allocation's order.

    `mig_uuids` has the present UUID of each MIG instance, which is no part of the record because it changes.
    Raise NotFoundError if one is missing there.
    """
    known = mig_uuids or {}
    found = []
    for allocated in allocation.devices:
        device = allocated.device
        uuid = device.gpu_uuid if device.mig is None else known.get(device)
        if not uuid:
            raise NotFoundError(f"no MIG instance {device.mig} on {device.gpu_uuid}")
        found.append(uuid)
    return ",".join(found)


def _document(text: str) -> JsonObject:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("the allocation is not valid Unicode") from None
    if len(encoded) > MAX_BYTES:
        raise InvalidRequestError(f"the allocation is longer than {MAX_BYTES} bytes")
    try:
        return as_object(orjson.loads(encoded), "the allocation")
    except orjson.JSONDecodeError:
        raise InvalidRequestError("the allocation is not JSON") from None


def _device_to_json(allocated: AllocatedDevice) -> dict[str, object]:
    body: dict[str, object] = {
        "uuid": allocated.device.gpu_uuid,
        "milli": allocated.milli,
        "mib": allocated.memory_mib,
    }
    if allocated.device.mig is not None:
        body["mig"] = {"profile": allocated.device.mig.profile, "start": allocated.device.mig.start}
    return body


def _device(entry: object, where: str) -> AllocatedDevice:
    body = as_object(entry, where)
    _refuse_other_fields(body, _DEVICE_FIELDS, where)
    mig = None
    if "mig" in body:
        place = as_object(body["mig"], f"{where}.mig")
        _refuse_other_fields(place, _MIG_FIELDS, f"{where}.mig")
        mig = MigPlacement(
            start=_number(place, "start", range(MAX_MIG_START + 1), f"{where}.mig"),
            profile=_matching(place, "profile", MIG_PROFILE, f"{where}.mig"),
        )
    return AllocatedDevice(
        device=DeviceRef(_matching(body, "uuid", GPU_UUID, where), mig),
        milli=_number(body, "milli", range(1, MILLI_PER_GPU + 1), where),
        memory_mib=_number(body, "mib", range(MAX_MEMORY_MIB + 1), where),
    )


def _refuse_overlap(devices: tuple[AllocatedDevice, ...]) -> None:
    """A GPU is given once; in MIG instances only if each starts elsewhere."""
    starts: dict[str, set[int | None]] = {}
    for allocated in devices:
        uuid, mig = allocated.device.gpu_uuid, allocated.device.mig
        taken = starts.setdefault(uuid, set())
        start = None if mig is None else mig.start
        if start in taken or (taken and None in {start, *taken}):
            raise InvalidRequestError(f"the allocation has device {uuid} twice")
        taken.add(start)


def _refuse_other_fields(body: JsonObject, known: frozenset[str], where: str) -> None:
    other = sorted(set(body) - known)
    if other:
        raise InvalidRequestError(f"{where} has an unknown field {shown(other[0])}")


def _matching(body: JsonObject, key: str, form: re.Pattern[str], where: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise InvalidRequestError(f"{where}.{key} is malformed: {shown(value)}")
    return value


def _number(body: JsonObject, key: str, allowed: range, where: str) -> int:
    value = body.get(key)
    if type(value) is not int or value not in allowed:
        raise InvalidRequestError(
            f"{where}.{key} must be a whole number from {allowed[0]} to {allowed[-1]}, not {shown(value)}"
        )
    return value
