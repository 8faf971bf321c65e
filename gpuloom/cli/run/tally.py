"""What became of the pods of a run: counted from every change of every pod, because ended pods are deleted.

Pure: changes in, counts out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.model.node import NodeMode

NOT_TRIED = "not tried yet"

# kube-scheduler puts the number of nodes before a reason: "0/3 nodes are available: 1 reason, 2 other one."
_HEAD = re.compile(r"0/[0-9]+ nodes are available(?:: |\.$)")
_NEXT_REASON = re.compile(r", (?=[0-9]+ )")
# What the scheduler finds without asking us; it says less than our own reasons.
_BUILT_IN = "Insufficient "


@dataclass(frozen=True, slots=True)
class PodCounts:
    """`placed`, `succeeded`, `failed` and `withdrawn` count since the start, the others what is now.

    A withdrawn pod was deleted before it was placed. `pending_reasons` has one reason per pending pod.
    """

    placed: int = 0
    placed_by_mode: Mapping[NodeMode, int] = field(default_factory=dict)
    succeeded: int = 0
    failed: int = 0
    withdrawn: int = 0
    running: int = 0
    pending_reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        return sum(self.pending_reasons.values())

    @property
    def finished(self) -> int:
        return self.succeeded + self.failed


class PodTally:
    """`observe` is a handler of an informer of pods. `modes` are those of the nodes, by name."""

    def __init__(self, modes: Mapping[str, NodeMode]) -> None:
        self._modes = modes
        self._placed: dict[str, NodeMode] = {}
        self._ended: dict[str, str] = {}
        self._withdrawn = 0
        self._present: dict[str, JsonObject] = {}

    def observe(self, change: Change) -> None:
        pod = change.object
        uid = uid_of(pod)
        node, phase = _node_of(pod), _phase_of(pod)
        if node:
            self._placed[uid] = self._modes.get(node, NodeMode.UNKNOWN)
        if phase in ("Succeeded", "Failed"):
            self._ended[uid] = phase
        if change.new is not None:
            self._present[uid] = pod
            return
        self._present.pop(uid, None)
        if uid not in self._placed:
            self._withdrawn += 1

    def counts(self) -> PodCounts:
        by_mode = Counter(self._placed.values())
        ended = Counter(self._ended.values())
        return PodCounts(
            placed=len(self._placed),
            placed_by_mode={mode: by_mode[mode] for mode in sorted(by_mode)},
            succeeded=ended["Succeeded"],
            failed=ended["Failed"],
            withdrawn=self._withdrawn,
            running=sum(_phase_of(pod) == "Running" for pod in self._present.values()),
            pending_reasons=dict(Counter(self._pending_reasons()).most_common()),
        )

    def _pending_reasons(self) -> Iterator[str]:
        for uid, pod in self._present.items():
            if uid not in self._placed and uid not in self._ended:
                yield pending_reason(pod)


def pending_reason(pod: JsonObject) -> str:
    """The one reason that says most: the extender's before a built-in one, then that of the most nodes."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return main_reason(str(condition.get("message") or condition.get("reason") or NOT_TRIED))
    return NOT_TRIED


def main_reason(message: str) -> str:
    head = _HEAD.match(message)
    if head is None:
        return message
    counted = [_split(part) for part in _NEXT_REASON.split(message[head.end() :].removesuffix("."))]
    _, reason = min(counted, key=lambda entry: (entry[1].startswith(_BUILT_IN), -entry[0], entry[1]))
    return reason or message


def _split(part: str) -> tuple[int, str]:
    count, _, reason = part.partition(" ")
    return (int(count), reason) if count.isdecimal() else (0, part)


def _node_of(pod: JsonObject) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _phase_of(pod: JsonObject) -> str:
    return str((pod.get("status") or {}).get("phase") or "")
