"""One sample of a node as Prometheus' text format. Pure.

Decides which series are shown and with which labels. What was not read is left out; it never shows a value
of an earlier sample.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance
from services.node_agent.core.picture import Picture
from services.node_agent.core.readings import Activity, DriverReading, GpuSample
from services.node_agent.exporter.core.families import (
    DEFAULT_FAMILIES,
    DEFAULT_LABELS,
    LABELS,
    Device,
    Family,
    Split,
    sample_of,
)
from services.node_agent.exporter.core.shares import Division, Share

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
UP = "dcgm_up"
UP_HELP = "1 if the GPU driver answered the last sample of the node, and that was lately."

_DECIMALS = 6
# A null byte ends the text for Prometheus; nothing else is special inside a label's value.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\0": "\ufffd"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\0": "\ufffd"})

Block = Mapping[str, str]
"""The lines of each family, by its name; a family without any is left out."""


@dataclass(frozen=True, slots=True)
class PageFormat:
    """Which metrics are shown, in which order, and which of a device's properties are labels of each."""

    hostname_label: str = "Hostname"
    families: tuple[Family, ...] = DEFAULT_FAMILIES
    labels: tuple[str, ...] = DEFAULT_LABELS


@dataclass(frozen=True, slots=True)
class NodePage:
    """What one node has to show. `note` says why it shows no devices, if that is on purpose."""

    node_name: str
    up: bool
    block: Block = field(default_factory=dict)
    note: str = ""


def exposition(pages: Iterable[NodePage], form: PageFormat) -> bytes:
    """The text for all these nodes: each family once, with its series in the order of the nodes."""
    shown = list(pages)
    parts = [f"# {page.node_name.translate(_ESCAPES)}: {page.note}\n" for page in shown if page.note]
    parts += [f"# HELP {UP} {UP_HELP}\n# TYPE {UP} gauge\n"]
    parts += [f"{UP}{{{_node_labels(page.node_name, form)}}} {int(page.up)}\n" for page in shown]
    for family in form.families:
        blocks = [page.block[family.name] for page in shown if family.name in page.block]
        if blocks:
            meaning = family.help.translate(_HELP_ESCAPES)
            parts.append(f"# HELP {family.name} {meaning}\n# TYPE {family.name} {family.kind}\n")
            parts += blocks
    return "".join(parts).encode("utf-8", "replace")


def device_block(picture: Picture, form: PageFormat) -> Block:
    """The series of all devices of one sample; none if the driver did not answer."""
    reading = picture.reading
    if reading is None:
        return {}
    division = Division(picture)
    node = _node_labels(picture.state.node_name, form)
    lines: dict[str, list[str]] = {family.name: [] for family in form.families}
    for gpu in picture.state.gpus:
        common = ",".join([node, *(_label(name, LABELS[name](gpu, reading)) for name in form.labels)])
        product = reading.products.get(gpu.uuid) or gpu.model
        for ref, device in _devices(gpu, reading):
            labels = f"{_device_labels(device, product)},{common}"
            rows = [(f"{{{labels},{_owner_labels(share)}}} ", share) for share in division.shares(ref)]
            for family in form.families:
                lines[family.name] += _lines(family, device, rows)
    return {name: "".join(found) for name, found in lines.items() if found}


def _lines(family: Family, device: Device, rows: list[tuple[str, Share]]) -> Iterator[str]:
    value = family.read(device)
    if value is None or not math.isfinite(value):
        return
    split = family.split_on(device)
    for row, share in rows:
        yield f"{family.name}{row}{_number(_part(value, split, share))}\n"


def _devices(gpu: Gpu, reading: DriverReading) -> Iterator[tuple[DeviceRef, Device]]:
    """The GPU itself, or its instances if it is cut, as dcgm-exporter shows them."""
    whole = DeviceRef(gpu.uuid)
    sample = GpuSample() if gpu.health is GpuHealth.LOST else sample_of(gpu.uuid, reading)
    if not gpu.mig_instances:
        activity = reading.activity.get(whole, Activity())
        yield whole, Device(gpu, sample, activity, last_xid=_last_xid(gpu, reading))
        return
    for mig in gpu.mig_instances:
        ref = DeviceRef(gpu.uuid, mig.placement)
        yield ref, _instance(gpu, mig, sample, reading)


def _instance(gpu: Gpu, mig: MigInstance, sample: GpuSample, reading: DriverReading) -> Device:
    ref = DeviceRef(gpu.uuid, mig.placement)
    return Device(
        gpu,
        sample,
        reading.activity.get(ref, Activity()),
        mig,
        reading.instances.get(ref),
        # An error that names no instance is one of the whole card.
        reading.last_xids.get(ref, _last_xid(gpu, reading)),
    )


def _last_xid(gpu: Gpu, reading: DriverReading) -> int | None:
    """Of the whole card. Where errors are reported, none so far is 0; of a lost card nothing is claimed."""
    none = 0 if gpu.uuid in reading.xids_heard and gpu.health is not GpuHealth.LOST else None
    return reading.last_xids.get(DeviceRef(gpu.uuid), none)


def _part(value: float, split: Split, share: Share) -> float:
    match split:
        case Split.COMPUTE:
            ratio = share.compute_ratio
        case Split.MEMORY:
            ratio = share.memory_ratio
        case Split.REPEATED:
            return value
    # A whole number stays one where nobody else has the device.
    return value if ratio == 1 else value * ratio


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{round(value, _DECIMALS):.15g}"


def _device_labels(device: Device, product: str) -> str:
    gpu = device.gpu
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": f"nvidia{gpu.index}",
        "modelName": product,
    }
    if device.mig is not None:
        labels["GPU_I_PROFILE"] = device.mig.placement.profile
        labels["GPU_I_ID"] = _instance_number(device, device.mig)
    return ",".join(_label(name, value) for name, value in labels.items())


def _instance_number(device: Device, mig: MigInstance) -> str:
    """The driver's number. Where it tells none, the place does: two instances must not share labels."""
    return f"start-{mig.placement.start}" if device.instance is None else str(device.instance.number)


def _node_labels(node_name: str, form: PageFormat) -> str:
    return f"{_label(form.hostname_label, node_name)},{_label('node', node_name)}"


def _owner_labels(share: Share) -> str:
    owner = share.owner
    return (
        f"{_label('container', owner.container)},{_label('namespace', owner.namespace)},"
        f"{_label('pod', owner.pod)}"
    )


def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPES)}"'
