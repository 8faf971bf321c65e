"""Prices of Google Cloud, from its billing catalogue.

Google prices cores, memory and GPUs each; a machine is the sum of its parts. The GPU's model, and whether a
price is for spot machines, is told in the description alone.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from gpuloom.catalog import Catalog, InstanceType, load_catalog
from gpuloom.errors import UnavailableError
from gpuloom.model.money import NANO_PER_USD
from services.cost_engine.core.prices import ON_DEMAND, RESERVED, SPOT, Price, Source
from services.cost_engine.ports import MALFORMED

URL = "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus"
"""The service is Compute Engine."""
MAX_PAGES = 50
PAGE_TIMEOUT_S = 60.0
_USAGE = {"OnDemand": ON_DEMAND, "Preemptible": SPOT, "Commit1Yr": RESERVED}
_CORE, _MEMORY = "core", "memory"
# What descriptions call the parts of a family; the GPU by how the catalogue calls its model, or by the family
# where that has dearer ones of the model.
_FAMILIES = {"a2": "A2 Instance", "a3": "A3 Instance", "a3-megagpu": "A3Plus Instance", "g2": "G2 Instance"}
_GPUS = {
    "A100-SXM4-40GB": ("Nvidia Tesla A100 GPU",),
    "A100-SXM4-80GB": ("Nvidia Tesla A100 80GB GPU", "Nvidia A100 80GB GPU"),
    "H100-SXM5-80GB": ("Nvidia H100 80GB GPU",),
    "a3-megagpu": (
        "Nvidia H100 80GB Mega GPU",
        "Nvidia H100 80GB Plus GPU",
        "Nvidia H100 Mega 80GB GPU",
    ),
    "L4": ("Nvidia L4 GPU",),
}

# Other ways to pay for the same part; most of them say that they are on demand.
_OTHER_WAYS = ("DWS", "Calendar Mode", "Reserved", "Sole Tenancy", "Capacity Optimized")

Parts = dict[tuple[str, str, str], int]
"""Nano-USD an hour by region, capacity type and part."""


@dataclass(frozen=True, slots=True)
class _Sku:
    regions: tuple[str, ...]
    kind: str
    part: str
    nano: int


class GcpPrices:
    name = "gcp"

    def __init__(self, regions: Sequence[str], api_key: str, url: str = URL) -> None:
        self._regions = frozenset(regions)
        self._api_key = api_key
        self._url = url

    async def fetch(self, now_ns: int) -> Sequence[Price]:
        parts: Parts = {}
        timeout = aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                async for document in self._skus(session):
                    add_sku(parts, document, self._regions)
            return machine_prices(parts, load_catalog(), now_ns)
        except (aiohttp.ClientError, TimeoutError, *MALFORMED) as error:
            raise UnavailableError(f"Google did not tell its prices: {type(error).__name__}") from error

    async def _skus(self, session: aiohttp.ClientSession) -> AsyncIterator[dict[str, Any]]:
        token = ""
        for _ in range(MAX_PAGES):
            query = {"key": self._api_key, "pageSize": "5000"} | ({"pageToken": token} if token else {})
            async with session.get(self._url, params=query) as answer:
                answer.raise_for_status()
                page = await answer.json()
            for sku in page.get("skus", ()):
                yield sku
            token = page.get("nextPageToken") or ""
            if not token:
                return


def add_sku(parts: Parts, document: Mapping[str, Any], regions: frozenset[str]) -> None:
    sku = _read(document)
    if sku is None:
        return
    for region in regions & set(sku.regions):
        parts[region, sku.kind, sku.part] = sku.nano


def machine_prices(parts: Parts, catalog: Catalog, now_ns: int) -> list[Price]:
    """Of machines all of whose parts have a price."""
    found = []
    places = sorted({(region, kind) for region, kind, _ in parts})
    for machine in catalog.instances:
        family = _family(machine.name)
        if machine.provider != "gcp" or not family:
            continue
        for region, kind in places:
            nano = _sum(parts, (region, kind, family), machine)
            if nano is not None:
                found.append(
                    Price("gcp", region, "", machine.name, kind, nano, now_ns, None, Source.GCP, now_ns)
                )
    return found


def _family(name: str) -> str:
    """The longest that the machine's name begins with; empty for another one."""
    return max((family for family in _FAMILIES if name.startswith(f"{family}-")), key=len, default="")


def _sum(parts: Parts, place: tuple[str, str, str], machine: InstanceType) -> int | None:
    region, kind, family = place
    core = parts.get((region, kind, f"{family}/{_CORE}"))
    memory = parts.get((region, kind, f"{family}/{_MEMORY}"))
    gpu = parts.get((region, kind, family if family in _GPUS else machine.gpu.name))
    if core is None or memory is None or gpu is None:
        return None
    return core * machine.vcpus + memory * machine.memory_gib + gpu * machine.gpu_count


def _read(document: Mapping[str, Any]) -> _Sku | None:
    category, description = document["category"], str(document["description"])
    kind = _USAGE.get(category.get("usageType", ""))
    if "Spot Preemptible" in description:
        # Some of them say that they are on demand.
        kind = SPOT
    part = _part(description)
    nano = _nano(document)
    if kind is None or part is None or nano <= 0:
        return None
    return _Sku(tuple(document.get("serviceRegions", ())), kind, part, nano)


def _part(description: str) -> str | None:
    if any(way in description for way in _OTHER_WAYS):
        return None
    for family, name in _FAMILIES.items():
        if f"{name} Core" in description:
            return f"{family}/{_CORE}"
        if f"{name} Ram" in description:
            return f"{family}/{_MEMORY}"
    return next((model for model, names in _GPUS.items() if any(name in description for name in names)), None)


def _nano(document: Mapping[str, Any]) -> int:
    """Of the newest price, by the hour; 0 where it is not told so or not in USD."""
    for told in reversed(document.get("pricingInfo", ())):
        expression = told["pricingExpression"]
        unit = str(expression.get("usageUnit", ""))
        if unit not in ("h", "GiBy.h"):
            return 0
        rates = expression.get("tieredRates", ())
        if not rates or rates[-1]["unitPrice"].get("currencyCode") != "USD":
            return 0
        price = rates[-1]["unitPrice"]
        return int(price.get("units") or 0) * NANO_PER_USD + int(price.get("nanos") or 0)
    return 0
