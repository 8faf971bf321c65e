"""Which pods a budget stops, by verdicts that were fetched before. Pure; without them nobody is stopped.

A budget that blocks stops its pods altogether. One that throttles leaves them what nobody else waits for:
they are stopped while another GPU pod waits, unless that has waited for ten minutes, so that a pod that fits
nowhere cannot stop a team for good.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.model.budget import BudgetAction
from gpuloom.model.cost import BudgetVerdict

PATIENCE = timedelta(minutes=10)
BEHIND = "its pods are placed when no other GPU pod waits"


class BudgetGate:
    def __init__(self) -> None:
        self.verdicts: tuple[BudgetVerdict, ...] = ()
        self.others_wait = False
        """Whether a pod waits that no budget stops; only kept up while a budget throttles."""

    @property
    def throttles(self) -> bool:
        return any(verdict.action == BudgetAction.THROTTLE for verdict in self.verdicts)

    def refusal(self, pod: JsonObject) -> str:
        """Why no node may have it; empty if no budget stops it."""
        stopping = self._stopping(pod)
        throttled = ""
        for verdict in stopping:
            if verdict.action != BudgetAction.THROTTLE:
                return verdict.reason
            throttled = throttled or f"{verdict.reason}; {BEHIND}"
        return throttled if self.others_wait else ""

    def goes_first(self, waiting: JsonObject, now: datetime) -> bool:
        """Whether throttled pods are to wait for this one, which is not bound yet."""
        metadata, spec = metadata_of(waiting), waiting.get("spec")
        if metadata.get("deletionTimestamp") or (isinstance(spec, dict) and spec.get("schedulingGates")):
            return False
        return now - _created(metadata, now) < PATIENCE and not self._stopping(waiting)

    def _stopping(self, pod: JsonObject) -> list[BudgetVerdict]:
        if not self.verdicts:
            return []
        metadata = metadata_of(pod)
        labels = metadata.get("labels")
        own = labels if isinstance(labels, Mapping) else {}
        texts = {key: value for key, value in own.items() if isinstance(value, str)}
        namespace = str(metadata.get("namespace") or "")
        return [each for each in self.verdicts if each.stops(namespace, texts)]


def _created(metadata: JsonObject, now: datetime) -> datetime:
    try:
        return datetime.fromisoformat(str(metadata.get("creationTimestamp"))).astimezone(UTC)
    except ValueError:
        return now
