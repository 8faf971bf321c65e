"""The list prices that come with this version."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

from gpuloom.catalog.loader import CatalogError
from gpuloom.model.money import nano_usd

PRICES_FILE = "prices.toml"
CAPACITY_TYPES = ("on-demand", "spot", "reserved")


@dataclass(frozen=True, slots=True)
class ListPrice:
    """`region` empty: everywhere."""

    provider: str
    region: str
    instance_type: str
    capacity_type: str
    nano_usd_per_hour: int
    date: date


@cache
def load_list_prices() -> tuple[ListPrice, ...]:
    text = (resources.files("gpuloom.catalog") / "data" / PRICES_FILE).read_text("utf-8")
    return parse_list_prices(text)


def parse_list_prices(text: str) -> tuple[ListPrice, ...]:
    """Raise CatalogError, with the entry, for what is no price."""
    return tuple(price for entry in tomllib.loads(text)["list"] for price in _prices(entry))


def _prices(entry: dict[str, Any]) -> Iterator[ListPrice]:
    provider, region = entry["provider"], entry["region"]
    for name, *amounts in entry["prices"]:
        for capacity_type, amount in zip(CAPACITY_TYPES, amounts, strict=False):
            if not amount:
                continue
            try:
                nano = nano_usd(amount)
            except ValueError as error:
                raise CatalogError(f"{PRICES_FILE}: {provider} {region} {name}: {error}") from None
            if nano <= 0:
                raise CatalogError(f"{PRICES_FILE}: {provider} {region} {name}: a price must be above 0")
            yield ListPrice(provider, region, name, capacity_type, nano, entry["date"])
