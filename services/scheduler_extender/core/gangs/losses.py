"""What evicting a pod would lose: its work since the last checkpoint, at its node's list price. Pure.

Where no price is known it costs 0, and the time alone is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from gpuloom.catalog.prices import load_list_prices
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import parse_time
from gpuloom.model.money import cost_nano_usd, usd
from gpuloom.names import (
    ANNOTATION_CHECKPOINT_GRACE,
    ANNOTATION_CHECKPOINT_REQUESTED,
    ANNOTATION_CHECKPOINT_TIME,
    ANNOTATION_NO_DISRUPT,
    ANNOTATION_NO_PREEMPT,
)

LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_REGION = "topology.kubernetes.io/region"
LABEL_CAPACITY_TYPE = "gpu-autoscaler.io/capacity-type"
MOST_GRACE_S = 3600
TOLD_FOR_S = 900.0
"""So long after its time to save was over what a pod was told still counts."""
OVERDUE_S = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """How a pod runs. `started` None: no kubelet has said so. `grace_s`: the time to save its work.

    `bound` is when it got its node, `gone_by` when a pod that is deleted should be gone.
    """

    started: datetime | None
    saved: datetime | None
    told: datetime | None
    grace_s: int
    protected: bool
    bound: datetime | None = None
    gone_by: datetime | None = None

    def lost_s(self, now: datetime) -> float:
        """A checkpoint time that lies ahead, or before the start, is not believed."""
        if self.started is None:
            return 0.0
        saved = self.saved if self.saved is not None and self.saved <= now else self.started
        return max(0.0, (now - max(saved, self.started)).total_seconds())

    def is_young(self, now: datetime, min_run_s: float) -> bool:
        since = self.started or self.bound
        return since is not None and (now - since).total_seconds() < min_run_s

    def may_go(self, now: datetime) -> bool:
        """Whether it has had the time that it asked for."""
        if self.grace_s == 0:
            return True
        return self.told is not None and self.is_told(now) and _passed_s(self.told, now) >= self.grace_s

    def is_told(self, now: datetime) -> bool:
        """What it was told for a plan of long ago, or is to be told one day, does not count."""
        return self.told is not None and 0 <= _passed_s(self.told, now) <= self.grace_s + TOLD_FOR_S

    def is_about_to_go(self, now: datetime) -> bool:
        """Whether it is deleted and may well end by itself; one that should be gone by now hangs."""
        return self.gone_by is not None and _passed_s(self.gone_by, now) <= OVERDUE_S


def run_of(pod: JsonObject) -> Run:
    notes, status = metadata_of(pod).get("annotations"), pod.get("status")
    annotations = notes if isinstance(notes, dict) else {}
    grace = annotations.get(ANNOTATION_CHECKPOINT_GRACE)
    digits = grace if isinstance(grace, str) and grace.isascii() and grace.isdigit() else "0"
    shown = status if isinstance(status, dict) else {}
    return Run(
        _moment(shown.get("startTime")),
        _moment(annotations.get(ANNOTATION_CHECKPOINT_TIME)),
        _moment(annotations.get(ANNOTATION_CHECKPOINT_REQUESTED)),
        min(int(digits[:9]), MOST_GRACE_S),
        "true" in (annotations.get(ANNOTATION_NO_PREEMPT), annotations.get(ANNOTATION_NO_DISRUPT)),
        _bound(shown.get("conditions")),
        _moment(metadata_of(pod).get("deletionTimestamp")),
    )


def lost_nano_usd(lost_s: float, share: float, node_labels: Mapping[str, str]) -> int:
    """`share`: the part of the node's GPUs that it has."""
    price = hourly_nano_usd(
        node_labels.get(LABEL_INSTANCE_TYPE, ""),
        node_labels.get(LABEL_REGION, ""),
        node_labels.get(LABEL_CAPACITY_TYPE, "on-demand"),
    )
    return int(cost_nano_usd(price, int(lost_s * 1_000_000_000)) * share)


@lru_cache(maxsize=1024)
def hourly_nano_usd(instance_type: str, region: str, capacity_type: str) -> int:
    """0 where no price is known."""
    if not instance_type:
        return 0
    found = [
        price
        for price in load_list_prices()
        if price.instance_type == instance_type and price.capacity_type == capacity_type
    ]
    here = [price for price in found if price.region in ("", region)]
    return max((price.nano_usd_per_hour for price in here or found), default=0)


def loss_text(lost_s: float, nano_usd: int) -> str:
    minutes = f"{lost_s / 60:.0f} min of work"
    return f"{minutes}, {usd(nano_usd):.2f} USD" if nano_usd else minutes


def _bound(conditions: object) -> datetime | None:
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == "PodScheduled":
            return _moment(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None
    return None


def _passed_s(since: datetime, now: datetime) -> float:
    return (now - since).total_seconds()


def _moment(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None
