"""Which pods a budget stops, by verdicts that were fetched before. Pure; without them nobody is stopped."""

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.model.cost import BudgetVerdict


class BudgetGate:
    def __init__(self) -> None:
        self.verdicts: tuple[BudgetVerdict, ...] = ()

    def refusal(self, pod: JsonObject) -> str:
        """Why no node may have it; empty if no budget stops it."""
        if not self.verdicts:
            return ""
        metadata = metadata_of(pod)
        labels = metadata.get("labels")
        texts = {key: value for key, value in (labels or {}).items() if isinstance(value, str)}
        namespace = str(metadata.get("namespace") or "")
        return next((each.reason for each in self.verdicts if each.stops(namespace, texts)), "")
