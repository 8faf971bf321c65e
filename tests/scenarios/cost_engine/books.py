"""What the simulation wrote down while services were killed: nothing of the cost engine has a hand in it.

The API's journal has every state that Kubernetes showed, in order; a position is a length of that file. The
kubelets' journals say who held which devices, the agents' spools which windows were ever kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from gpuloom.codec.usage import window_from_proto
from gpuloom.kube.objects import JsonObject
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.usage import UsageWindow
from gpuloom.sim.kubeapi.storage.journal import decode_change
from gpuloom.sim.machines.journal import JOURNAL_FILE, EntryKind, read_journal
from gpuloom.v1.usage_pb2 import UsageWindow as WindowMessage
from services.node_agent.usage.core.records import read_segment

UNITS_PER_GPU = 21_000
COMPUTE_SLICES = 7
"""Of every card here that is cut."""


@dataclass(frozen=True)
class ShownPod:
    """`bound_s` and `ended_s` are the times in its status; the others are positions in the journal."""

    node: str
    bound_s: int
    bound_at: int
    ended_s: int | None = None
    ended_at: int | None = None
    gone_at: int | None = None


@dataclass(frozen=True)
class Holding:
    """By the clock of the kubelet; `end_s` is None while it lasts."""

    units: int
    end_s: float | None = None


@dataclass(frozen=True)
class Shown:
    """By UID. `created_s`: of nodes."""

    pods: dict[str, ShownPod]
    created_s: dict[str, int]


def shown_by(state: Path) -> Shown:
    shown, uids, position = Shown({}, {}), dict[str, str](), 0
    with state.open("rb") as lines:
        for line in lines:
            position += len(line)
            change = decode_change(line)
            if change is None or change.key is None or change.resource not in ("pods", "nodes"):
                continue
            if change.obj is not None and change.resource == "nodes":
                metadata = change.obj["metadata"]
                shown.created_s[metadata["uid"]] = _seconds(metadata["creationTimestamp"])
            elif change.obj is not None:
                uid = uids["/".join(change.key)] = change.obj["metadata"]["uid"]
                _note(shown.pods, uid, change.obj, position)
            elif uids.get("/".join(change.key)) in shown.pods:
                uid = uids["/".join(change.key)]
                shown.pods[uid] = replace(shown.pods[uid], gone_at=position)
    return shown


def _note(pods: dict[str, ShownPod], uid: str, pod: JsonObject, position: int) -> None:
    node, status = pod["spec"].get("nodeName"), pod.get("status") or {}
    bound = [each for each in status.get("conditions") or () if each["type"] == "PodScheduled"]
    if node and bound and uid not in pods:
        pods[uid] = ShownPod(node, _seconds(bound[0]["lastTransitionTime"]), position)
    ends = [
        _seconds(each["state"]["terminated"]["finishedAt"])
        for each in status.get("containerStatuses") or ()
        if "terminated" in each["state"]
    ]
    if uid in pods and pods[uid].ended_at is None and status.get("phase") in ("Succeeded", "Failed"):
        pods[uid] = replace(pods[uid], ended_s=max(ends, default=None), ended_at=position)


def held_on(machines: Path) -> dict[str, Holding]:
    """By pod UID; only those that held a device."""
    found: dict[str, Holding] = {}
    for path in machines.glob(f"*/{JOURNAL_FILE}"):
        for entry in read_journal(path).entries:
            units = sum(map(_units, entry.devices))
            if entry.kind is EntryKind.START and units:
                found[entry.pod.uid] = Holding(units)
            elif entry.kind is EntryKind.END and entry.pod.uid in found:
                ended_s = datetime.fromisoformat(entry.time).timestamp()
                found[entry.pod.uid] = replace(found[entry.pod.uid], end_s=ended_s)
    return found


def spooled_on(machines: Path) -> dict[str, list[UsageWindow]]:
    """By spool, in order."""
    found: dict[str, list[UsageWindow]] = {}
    for path in sorted(machines.glob("*/usage/*/*.usage")):
        segment = read_segment(path.read_bytes())
        if segment is not None:
            found.setdefault(segment.spool_id, []).extend(map(_window, segment.windows))
    return found


def told_for_sure(first: int, gone: int | None, restarts: Iterable[tuple[int, int]]) -> bool:
    """Whether the engine must know of what stood in the API from one position to another.

    `restarts`: where it was killed, and where it had listed everything again. What stood there all the time
    between was listed, and whatever was still there afterwards was listed or heard of, if it was the last.
    """
    known = list(restarts)
    listed = any(first <= killed and (gone is None or up < gone) for killed, up in known)
    return listed or gone is None or known[-1][1] < gone


def _units(given: AllocatedDevice) -> int:
    if given.device.mig is None:
        return given.milli * UNITS_PER_GPU // 1000
    return int(given.device.mig.profile[0]) * UNITS_PER_GPU // COMPUTE_SLICES


def _window(data: bytes) -> UsageWindow:
    return window_from_proto(WindowMessage.FromString(data))


def _seconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp())
