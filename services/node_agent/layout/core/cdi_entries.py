"""CDI entries of MIG instances: which device files each needs. Pure.

The driver's libraries and the files that all devices share are those of the spec that the node has for its
GPUs; NVIDIA's toolkit wrote it, and it is copied, not understood.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NAME = "gpuloom-mig.json"


@dataclass(frozen=True, slots=True)
class SliceFiles:
    """Device files of one MIG instance, as containers see them."""

    uuid: str
    paths: tuple[str, ...]


def base_of(documents: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The spec whose shared edits fit the GPUs of this node; the first that has any."""
    found = [document for document in documents if document.get("kind") == kind and document.get("devices")]
    return next((document for document in found if document.get("containerEdits")), next(iter(found), None))


def named_in(documents: Iterable[Mapping[str, Any]], kind: str) -> frozenset[str]:
    """Devices that specs of others have."""
    return frozenset(
        str(device.get("name"))
        for document in documents
        if document.get("kind") == kind
        for device in document.get("devices") or ()
        if isinstance(device, dict)
    )


def spec_of(
    slices: Iterable[SliceFiles], kind: str, base: Mapping[str, Any] | None, device_root: str
) -> dict[str, Any]:
    """`device_root` is where the host's /dev is for us; elsewhere in a container it is /dev."""
    shared = {} if base is None else base.get("containerEdits") or {}
    return {
        "cdiVersion": "0.6.0" if base is None else base.get("cdiVersion", "0.6.0"),
        "kind": kind,
        "devices": [
            {
                "name": one.uuid,
                "containerEdits": {"deviceNodes": [_node(path, device_root) for path in one.paths]},
            }
            for one in sorted(slices, key=lambda one: one.uuid)
        ],
        "containerEdits": shared,
    }


def minor_of(text: str) -> int | None:
    """Of a capability file of the driver; None if it does not say."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and value.strip().isdigit():
            return int(value)
    return None


def major_of(devices: str, name: str) -> int | None:
    """Of /proc/devices; None if the kernel has no such driver."""
    for line in devices.splitlines():
        number, _, driver = line.strip().partition(" ")
        if driver.strip() == name and number.isdigit():
            return int(number)
    return None


def _node(path: str, device_root: str) -> dict[str, Any]:
    if device_root == "/dev":
        return {"path": path}
    return {"path": path, "hostPath": device_root + path.removeprefix("/dev")}
