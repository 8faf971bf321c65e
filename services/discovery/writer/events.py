"""Kubernetes Events on nodes whose facts, or single GPUs, are not trusted: one for each cause on each node.

Decides when a cause is told. What a node's start explains is told only if it lasts. While a cause stands,
more of the same on the same node count its Event up; that it is gone shows in the metrics and the log.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.runtime.clock import Clock
from services.discovery.core.cluster import TrustChange
from services.discovery.core.findings import Cause, Finding
from services.discovery.writer.core.advice import event_message, event_reason

# A new node, or an agent that is replaced, passes through these in seconds: with a thousand nodes, a rollout
# would bury what needs a person.
_STARTING = frozenset({Cause.AGENT_NOT_HEARD, Cause.NODE_UID_UNKNOWN, Cause.HOLDERS_UNKNOWN})
_PATIENCE_S = 60.0

NodeOf = Callable[[str], JsonObject | None]
"""The node of this name as last observed."""

_Key = tuple[str, Cause]
"""Node UID and cause."""


class Recorder(Protocol):
    def warning(self, obj: JsonObject, reason: str, message: str) -> None: ...


@dataclass(slots=True)
class _Story:
    """What stands now for one cause on one node. `message` is what was told of it; empty: nothing yet."""

    node_name: str
    findings: dict[Finding, None] = field(default_factory=dict)
    message: str = ""


class TrustEvents:
    def __init__(self, recorder: Recorder, node_of: NodeOf, clock: Clock) -> None:
        self._recorder = recorder
        self._node_of = node_of
        self._clock = clock
        self._stories: dict[_Key, _Story] = {}
        self._due_s: dict[_Key, float] = {}

    def start(self, standing: Iterable[TrustChange]) -> None:
        """Begin with everything that stands: nobody may have told of it before."""
        self._stories.clear()
        self._due_s.clear()
        self.tell(standing)

    def tell(self, changes: Iterable[TrustChange]) -> None:
        """What appeared and what is gone; and, with every call, what has lasted long enough by now."""
        now_s = self._clock.monotonic()
        for change in changes:
            self._note(change, now_s)
        for key in [key for key, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[key]
            self._record(key)

    def _note(self, change: TrustChange, now_s: float) -> None:
        cause = change.finding.cause
        key = change.node_uid, cause
        if change.appeared:
            story = self._stories.setdefault(key, _Story(change.node_name))
            # The newest of equal findings has the newest detail.
            story.findings.pop(change.finding, None)
            story.findings[change.finding] = None
            patience_s = _PATIENCE_S if cause in _STARTING and not story.message else 0.0
            self._due_s.setdefault(key, now_s + patience_s)
        elif key in self._stories:
            self._stories[key].findings.pop(change.finding, None)
            if not self._stories[key].findings:
                del self._stories[key]
                self._due_s.pop(key, None)

    def _record(self, key: _Key) -> None:
        (node_uid, cause), story = key, self._stories[key]
        node = self._node_of(story.node_name)
        if node is None or uid_of(node) != node_uid:
            return
        story.message = story.message or event_message(cause, story.findings)
        about = {"apiVersion": "v1", "kind": "Node", "metadata": node["metadata"]}
        self._recorder.warning(about, event_reason(cause), story.message)
