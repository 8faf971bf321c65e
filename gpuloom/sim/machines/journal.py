"""The journal of one machine: every start, end and refusal of a device holding, in the order it happened.

Only that machine's kubelet appends; the audit reads. Sequence numbers give the order, times are for people.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef

JOURNAL_FILE = "journal.jsonl"


class EntryKind(StrEnum):
    START = "start"
    END = "end"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`resource` and `requested` say what was refused; they are empty and 0 otherwise."""

    sequence: int
    time: str
    kind: EntryKind
    pod: PodRef
    devices: tuple[AllocatedDevice, ...] = ()
    resource: str = ""
    requested: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ParsedJournal:
    """`corrupt` names lines that can't be read. A torn last line is only the mark of a killed writer."""

    entries: tuple[JournalEntry, ...]
    corrupt: tuple[str, ...] = ()
    torn_tail_bytes: int = 0


class Journal:
    """Appends to one file. A line is written by one call, so a killed writer can tear only the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        parsed = read_journal(path)
        self.entries_at_open = parsed.entries
        self._sequence = max((entry.sequence for entry in parsed.entries), default=0)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if parsed.torn_tail_bytes:
            os.ftruncate(self._descriptor, path.stat().st_size - parsed.torn_tail_bytes)

    def append(self, entry: JournalEntry) -> JournalEntry:
        """Write the entry under the next sequence number, whatever number it came with."""
        self._sequence += 1
        numbered = replace(entry, sequence=self._sequence)
        os.write(self._descriptor, encode_entry(numbered))
        return numbered

    def close(self) -> None:
        os.close(self._descriptor)


def read_journal(path: Path) -> ParsedJournal:
    """A journal that does not exist yet is empty."""
    try:
        return parse_journal(path.read_bytes())
    except FileNotFoundError:
        return ParsedJournal(())


def parse_journal(content: bytes, first_line: int = 1) -> ParsedJournal:
    """`first_line` is the number of the content's first line, if it is only a part of the journal."""
    lines = content.split(b"\n")
    tail = lines.pop()
    entries: list[JournalEntry] = []
    corrupt: list[str] = []
    for number, line in enumerate(lines, start=first_line):
        try:
            entries.append(decode_entry(line))
        except (ValueError, KeyError, TypeError) as error:
            corrupt.append(f"line {number} can't be read: {what_is_wrong(error)}")
    return ParsedJournal(tuple(entries), tuple(corrupt), torn_tail_bytes=len(tail))


def missing_entries(
    entries: Iterable[JournalEntry], held: Mapping[PodRef, tuple[AllocatedDevice, ...]], time: str
) -> tuple[JournalEntry, ...]:
    """What a kubelet must still write that was killed between the machine's state and its journal."""
    open_holdings: dict[PodRef, tuple[AllocatedDevice, ...]] = {}
    for entry in entries:
        if entry.kind is EntryKind.START:
            open_holdings[entry.pod] = entry.devices
        elif entry.kind is EntryKind.END:
            open_holdings.pop(entry.pod, None)
    ends = (
        JournalEntry(0, time, EntryKind.END, pod, devices, reason="ended before the kubelet was killed")
        for pod, devices in open_holdings.items()
        if pod not in held
    )
    starts = (
        JournalEntry(0, time, EntryKind.START, pod, devices, reason="started before the kubelet was killed")
        for pod, devices in held.items()
        if pod not in open_holdings
    )
    return (*ends, *starts)


def encode_entry(entry: JournalEntry) -> bytes:
    document: dict[str, Any] = {
        "seq": entry.sequence,
        "time": entry.time,
        "kind": entry.kind.value,
        "pod": {"uid": entry.pod.uid, "namespace": entry.pod.namespace, "name": entry.pod.name},
        "devices": [device_to_json(device) for device in entry.devices],
    }
    if entry.kind is EntryKind.REFUSED:
        document |= {"resource": entry.resource, "requested": entry.requested}
    if entry.reason:
        document["reason"] = entry.reason
    return orjson.dumps(document) + b"\n"


def decode_entry(line: bytes) -> JournalEntry:
    """Raise ValueError, KeyError or TypeError if it is not an entry."""
    document = orjson.loads(line)
    pod = document["pod"]
    return JournalEntry(
        sequence=int(document["seq"]),
        time=str(document["time"]),
        kind=EntryKind(document["kind"]),
        pod=PodRef(str(pod["namespace"]), str(pod["name"]), str(pod["uid"])),
        devices=tuple(device_from_json(device) for device in document["devices"]),
        resource=str(document.get("resource", "")),
        requested=int(document.get("requested", 0)),
        reason=str(document.get("reason", "")),
    )


def what_is_wrong(error: Exception) -> str:
    """With a document, in words for a person."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def device_to_json(held: AllocatedDevice) -> dict[str, Any]:
    mig = held.device.mig
    return {
        "uuid": held.device.gpu_uuid,
        "milli": held.milli,
        "mib": held.memory_mib,
        "mig": None if mig is None else {"profile": mig.profile, "start": mig.start},
    }


def device_from_json(document: Mapping[str, Any]) -> AllocatedDevice:
    mig = document.get("mig")
    placement = None if mig is None else MigPlacement(int(mig["start"]), str(mig["profile"]))
    return AllocatedDevice(
        DeviceRef(str(document["uuid"]), placement), int(document["milli"]), int(document["mib"])
    )
