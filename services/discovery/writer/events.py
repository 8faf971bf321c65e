"""Kubernetes Events on nodes whose facts, or single GPUs, are not trusted. Says it once for each finding."""

from collections.abc import Callable, Iterable
from typing import Protocol

from gpuloom.kube.objects import JsonObject
from services.discovery.cluster import TrustChange
from services.discovery.findings import Finding
from services.discovery.trust import REASONS

NodeOf = Callable[[str], JsonObject | None]
"""The node of this name as last observed."""


class Recorder(Protocol):
    def warning(self, obj: JsonObject, reason: str, message: str) -> None: ...


class TrustEvents:
    def __init__(self, recorder: Recorder, node_of: NodeOf) -> None:
        self._recorder = recorder
        self._node_of = node_of

    def tell(self, changes: Iterable[TrustChange]) -> None:
        """What appeared. That a finding is gone shows in the condition, the metrics and the log."""
        for change in changes:
            node = self._node_of(change.node_name)
            if change.appeared and node is not None:
                about = {"apiVersion": "v1", "kind": "Node", "metadata": node["metadata"]}
                self._recorder.warning(about, event_reason(change.finding), message_of(change.finding))


def event_reason(finding: Finding) -> str:
    """The cause as Kubernetes writes reasons: agent-silent is AgentSilent."""
    return "".join(part.capitalize() for part in finding.cause.split("-"))


def message_of(finding: Finding) -> str:
    where = f" (GPU {finding.gpu_uuid})" if finding.gpu_uuid else ""
    detail = f": {finding.detail}" if finding.detail else ""
    return f"not used because {REASONS[finding.cause]}{where}{detail}"
