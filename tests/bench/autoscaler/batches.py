"""Batches of the openb pods, and what machines cost: the data of the scale-up benchmark."""

import csv
import random
from pathlib import Path

from gpuloom.catalog import load_catalog
from gpuloom.model.money import nano_usd
from gpuloom.model.policies import CapacityType
from services.autoscaler.core.buying.offerings import Offering, OfferingKey
from services.autoscaler.core.buying.pending import PendingPod
from tests.unit.autoscaler.builders import a_pod

_POOL = "bench"


def read_pods(data: Path) -> list[dict[str, str]]:
    with (data / "openb" / "openb_pod_list_default.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if int(row["num_gpu"]) > 0]


def a_batch(rows: list[dict[str, str]], size: int, seed: int) -> list[PendingPod]:
    """Pods that came one after the other, as a burst does."""
    start = random.Random(seed).randrange(len(rows) - size)
    return [_pod(row) for row in rows[start : start + size]]


def read_offerings(data: Path, provider: str = "aws") -> list[Offering]:
    """Every type of the catalogue that has an on-demand price."""
    with (data / "gpu_prices.csv").open(encoding="utf-8") as file:
        prices = {
            row["instance_type"]: row["on_demand_usd_per_hour"]
            for row in csv.DictReader(file)
            if row["provider"] == provider and row["on_demand_usd_per_hour"]
        }
    return [
        Offering(_POOL, OfferingKey(one.name, "", CapacityType.ON_DEMAND), one, nano_usd(prices[one.name]))
        for one in load_catalog().instances
        if one.provider == provider and one.name in prices
    ]


def _pod(row: dict[str, str]) -> PendingPod:
    whole = int(row["num_gpu"]) * 1000
    milli = whole if int(row["num_gpu"]) > 1 else min(1000, int(row["gpu_milli"]))
    return a_pod(row["name"], milli=milli, cpu=f"{row['cpu_milli']}m", memory=f"{row['memory_mib']}Mi")
