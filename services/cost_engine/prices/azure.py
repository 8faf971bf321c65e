"""Prices of Azure, from its public list of retail prices."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from gpuloom.errors import UnavailableError
from gpuloom.model.money import nano_usd
from services.cost_engine.core.exports import time_text
from services.cost_engine.core.prices import ON_DEMAND, RESERVED, SPOT, Price, Source
from services.cost_engine.ports import MALFORMED

URL = "https://prices.azure.com/api/retail/prices"
VERSION = "2023-01-01-preview"
MAX_PAGES = 200
PAGE_TIMEOUT_S = 60.0
HOURS_PER_YEAR = 8760


class AzurePrices:
    name = "azure"

    def __init__(self, regions: Sequence[str], url: str = URL) -> None:
        self._regions = regions
        self._url = url

    async def fetch(self, now_ns: int) -> Sequence[Price]:
        found: list[Price] = []
        timeout = aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                for region in self._regions:
                    async for item in self._items(session, region):
                        found += of_item(item, now_ns)
        except (aiohttp.ClientError, TimeoutError, *MALFORMED) as error:
            raise UnavailableError(f"Azure did not tell its prices: {type(error).__name__}") from error
        return found

    async def _items(self, session: aiohttp.ClientSession, region: str) -> AsyncIterator[dict[str, Any]]:
        wanted = (
            f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' "
            "and (priceType eq 'Consumption' or priceType eq 'Reservation') "
            "and startswith(armSkuName, 'Standard_N')"
        )
        url: str | None = self._url
        query: dict[str, str] | None = {"api-version": VERSION, "$filter": wanted}
        for _ in range(MAX_PAGES):
            if url is None:
                return
            async with session.get(url, params=query) as answer:
                answer.raise_for_status()
                page = await answer.json()
            for item in page["Items"]:
                yield item
            # The next page is where the list says, but never on another host.
            following = page.get("NextPageLink")
            url = following if following and _same_host(following, self._url) else None
            query = None


def of_item(item: dict[str, Any], now_ns: int) -> Iterator[Price]:
    if item.get("currencyCode") != "USD" or item.get("unitOfMeasure") != "1 Hour":
        return
    # Cloud Services have the names of machines, and the price of those with Windows.
    product = str(item.get("productName", "")).replace(" ", "")
    if any(other in product for other in ("Windows", "CloudServices")):
        return
    if "Low Priority" in str(item.get("meterName")) or not _holds(item, time_text(now_ns)):
        return
    nano = nano_usd(str(item["retailPrice"]))
    kind = ON_DEMAND
    if item.get("type") == "Reservation":
        # It says by the hour and means for the whole term.
        if item.get("reservationTerm") != "1 Year":
            return
        nano //= HOURS_PER_YEAR
        kind = RESERVED
    elif item.get("type") != "Consumption":
        return
    elif str(item.get("skuName", "")).endswith(" Spot") or str(item.get("meterName", "")).endswith(" Spot"):
        kind = SPOT
    if nano > 0:
        yield Price(
            provider="azure",
            region=item["armRegionName"],
            zone="",
            instance_type=item["armSkuName"],
            capacity_type=kind,
            nano_usd_per_hour=nano,
            valid_from_ns=now_ns,
            valid_to_ns=None,
            source=Source.AZURE,
            fetched_at_ns=now_ns,
        )


def _holds(item: dict[str, Any], now: str) -> bool:
    """The list tells what was, and what will be, too."""
    start, end = str(item.get("effectiveStartDate") or ""), str(item.get("effectiveEndDate") or "")
    return start <= now and (not end or now < end)


def _same_host(first: str, second: str) -> bool:
    one, other = urlsplit(first), urlsplit(second)
    return (one.scheme, one.hostname) == (other.scheme, other.hostname)
