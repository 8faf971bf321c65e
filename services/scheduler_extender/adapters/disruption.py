"""PodDisruptionBudgets as they are when somebody plans: listed then, not followed."""

from collections.abc import Sequence

from gpuloom.codec.scheduling import label_selector
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import PDBS
from gpuloom.placement.gangs.victims import DisruptionBudget


class KubernetesBudgets:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def list(self) -> Sequence[DisruptionBudget]:
        listing = await self._client.list(PDBS)
        return [_budget(item) for item in listing.items]


def _budget(obj: JsonObject) -> DisruptionBudget:
    """One that has not been counted yet allows nothing."""
    allowed = (obj.get("status") or {}).get("disruptionsAllowed")
    return DisruptionBudget(
        str(metadata_of(obj).get("namespace") or ""),
        label_selector((obj.get("spec") or {}).get("selector")),
        allowed if isinstance(allowed, int) else 0,
    )
