"""Prices of AWS: list prices from the Price List API, spot prices from EC2's history."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuloom.errors import UnavailableError
from gpuloom.model.money import nano_usd
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND
from services.cost_engine.core.prices import ON_DEMAND, RESERVED, SPOT, Price, Source
from services.cost_engine.ports import MALFORMED

PRICING_REGION = "us-east-1"
"""The Price List API is in a few regions only; each knows the prices of all."""
SPOT_HISTORY = timedelta(hours=24)
HOURS_PER_YEAR = 8760
_FILTERS = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "tenancy": "Shared",
    "productFamily": "Compute Instance",
}
_PRODUCTS = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]


class AwsPrices:
    """Blocking calls of boto3 run in a thread."""

    name = "aws"

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = regions

    async def fetch(self, now_ns: int) -> Sequence[Price]:
        import boto3  # noqa: PLC0415 - only where AWS is asked
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        def read() -> list[Price]:
            pricing = boto3.client("pricing", region_name=PRICING_REGION)
            found: list[Price] = []
            for region in self._regions:
                listed = list(list_prices(pricing, region, now_ns))
                found += listed
                types = sorted({price.instance_type for price in listed})
                if types:
                    found += spot_prices(boto3.client("ec2", region_name=region), region, types, now_ns)
            return found

        try:
            return await asyncio.to_thread(read)
        except ClientError as error:
            # As where a right is missing: which one is the operation's.
            code = error.response.get("Error", {}).get("Code", "no code")
            raise UnavailableError(f"AWS refused {error.operation_name}: {code}") from error
        except (BotoCoreError, *MALFORMED) as error:
            raise UnavailableError(f"AWS did not tell its prices: {type(error).__name__}") from error


def list_prices(pricing: Any, region: str, now_ns: int) -> Iterator[Price]:
    """Of machines with GPUs, on demand and reserved for a year without upfront payment."""
    filters = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": region}]
    filters += [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in _FILTERS.items()]
    token = ""
    while True:
        more = {"NextToken": token} if token else {}
        page = pricing.get_products(
            ServiceCode="AmazonEC2", Filters=filters, FormatVersion="aws_v1", MaxResults=100, **more
        )
        for text in page["PriceList"]:
            yield from _of_product(json.loads(text), region, now_ns)
        token = page.get("NextToken") or ""
        if not token:
            return


def spot_prices(ec2: Any, region: str, types: Sequence[str], now_ns: int) -> Iterator[Price]:
    start = datetime.fromtimestamp(now_ns // NANOSECONDS_PER_SECOND, UTC) - SPOT_HISTORY
    token = ""
    while True:
        page = ec2.describe_spot_price_history(
            StartTime=start, ProductDescriptions=_PRODUCTS, InstanceTypes=list(types), NextToken=token
        )
        for entry in page["SpotPriceHistory"]:
            nano = nano_usd(str(entry["SpotPrice"]))
            if nano > 0:
                since_ns = int(entry["Timestamp"].timestamp()) * NANOSECONDS_PER_SECOND
                yield _price(
                    region, entry["InstanceType"], SPOT, nano, (since_ns, now_ns, entry["AvailabilityZone"])
                )
        token = page.get("NextToken") or ""
        if not token:
            return


def _of_product(document: dict[str, Any], region: str, now_ns: int) -> Iterator[Price]:
    attributes = document["product"]["attributes"]
    if not str(attributes.get("gpu", "0")).isdigit() or int(attributes.get("gpu", "0")) == 0:
        return
    name = attributes["instanceType"]
    terms = document.get("terms", {})
    for term in terms.get("OnDemand", {}).values():
        nano = _hourly(term)
        if nano > 0:
            yield _price(region, name, ON_DEMAND, nano, (now_ns, now_ns, ""))
    for term in terms.get("Reserved", {}).values():
        kind = term.get("termAttributes", {})
        wanted = ("1yr", "standard", "No Upfront")
        told = (kind.get("LeaseContractLength"), kind.get("OfferingClass"), kind.get("PurchaseOption"))
        nano = _hourly(term)
        if told == wanted and nano > 0:
            yield _price(region, name, RESERVED, nano, (now_ns, now_ns, ""))


def _hourly(term: dict[str, Any]) -> int:
    """0 where it is not told in USD by the hour: such a price is not taken."""
    for dimension in term.get("priceDimensions", {}).values():
        amount = dimension.get("pricePerUnit", {}).get("USD")
        if dimension.get("unit") == "Hrs" and amount is not None:
            return nano_usd(str(amount))
    return 0


def _price(region: str, name: str, kind: str, nano: int, when: tuple[int, int, str]) -> Price:
    since_ns, fetched_ns, zone = when
    return Price("aws", region, zone, name, kind, nano, since_ns, None, Source.AWS, fetched_ns)
