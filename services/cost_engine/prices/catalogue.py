"""The shipped list prices and the operator's own, as entries of the price book.

A file of the operator's prices:

[[price]]                       # a price as it is
instance_type = "dgx-h100"
usd_per_hour = "38.50"
capacity_type = "on-demand"     # or reserved, spot
region = "home"                 # optional
valid_from = 2026-01-01         # optional

[[machine]]                     # a machine that was bought: its cost over its life, and what it draws
instance_type = "dgx-a100"
purchase_usd = "199000"
years = 4
power_watts = 6500
usd_per_kwh = "0.19"
cooling_percent = 40            # of the power
overhead_usd_per_year = "12000"
"""

import tomllib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

from gpuloom.catalog.prices import load_list_prices
from gpuloom.model.money import nano_usd
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND
from services.cost_engine.core.prices import CAPACITY_TYPES, ON_DEMAND, Price, Source

HOURS_PER_YEAR = 8760
_PRICE_FIELDS = {
    "provider",
    "region",
    "zone",
    "instance_type",
    "capacity_type",
    "usd_per_hour",
    "valid_from",
    "valid_to",
}
_MACHINE_FIELDS = {
    "instance_type",
    "region",
    "purchase_usd",
    "years",
    "power_watts",
    "usd_per_kwh",
    "cooling_percent",
    "overhead_usd_per_year",
}


def catalogue_prices() -> list[Price]:
    """They hold for all time: a list that is a little old is better than none."""
    return [
        Price(
            provider=listed.provider,
            region=listed.region,
            zone="",
            instance_type=listed.instance_type,
            capacity_type=listed.capacity_type,
            nano_usd_per_hour=listed.nano_usd_per_hour,
            valid_from_ns=0,
            valid_to_ns=None,
            source=Source.CATALOGUE,
            fetched_at_ns=_ns(listed.date),
        )
        for listed in load_list_prices()
    ]


def custom_prices(text: str, currency: str = "USD") -> list[Price]:
    """Raise ValueError that names the entry and what is wrong with it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    if document.get("currency", currency) != "USD":
        raise ValueError("prices must be in USD: an amount of another currency is not relabelled")
    unknown = set(document) - {"price", "machine", "currency"}
    if unknown:
        raise ValueError(f"unknown table {sorted(unknown)[0]}")
    found = [*_listed(_rows(document, "price")), *_machines(_rows(document, "machine"))]
    _refuse_twice(found)
    return found


def machine_nano_per_hour(row: dict[str, Any]) -> int:
    """The purchase over its years, power with cooling, and overhead, for each hour of the year."""
    years = _amount(row, "years")
    if years == 0:
        raise ValueError("years must be above 0")
    hourly = _amount(row, "purchase_usd") / (years * HOURS_PER_YEAR)
    kilowatts = _amount(row, "power_watts", "0") / 1000
    cooling = 1 + _amount(row, "cooling_percent", "0") / 100
    hourly += kilowatts * cooling * _amount(row, "usd_per_kwh", "0")
    hourly += _amount(row, "overhead_usd_per_year", "0") / HOURS_PER_YEAR
    return nano_usd(hourly)


def _rows(document: dict[str, Any], key: str) -> list[Any]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise ValueError(f"{key} must be [[{key}]] tables")
    return rows


def _refuse_twice(prices: list[Price]) -> None:
    """Nobody could say which of the two holds."""
    kinds = Counter(
        (one.instance_type, one.provider, one.region, one.zone, one.capacity_type, one.valid_from_ns)
        for one in prices
    )
    twice = [kind for kind, count in kinds.items() if count > 1]
    if twice:
        name, *_, capacity_type, _ = min(twice)
        raise ValueError(f"{name}: two {capacity_type} prices for the same place from the same time on")


def _listed(rows: list[Any]) -> Iterator[Price]:
    for number, row in enumerate(rows, 1):
        where = f"price {number}"
        _refuse_other(row, _PRICE_FIELDS, where)
        try:
            yield _price(row, nano_usd(str(row.get("usd_per_hour", ""))))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _machines(rows: list[Any]) -> Iterator[Price]:
    for number, row in enumerate(rows, 1):
        where = f"machine {number}"
        _refuse_other(row, _MACHINE_FIELDS, where)
        try:
            yield _price(row, machine_nano_per_hour(row))
        except ArithmeticError:
            raise ValueError(f"{where}: its amounts make no price") from None
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _price(row: dict[str, Any], nano: int) -> Price:
    if nano <= 0:
        raise ValueError(f"a price must be above 0, not {row.get('usd_per_hour', nano)}")
    name = row.get("instance_type")
    if not isinstance(name, str) or not name:
        raise ValueError("instance_type is missing")
    if any("\0" in str(row.get(key, "")) for key in ("instance_type", "provider", "region", "zone")):
        raise ValueError("a name has no character 0")
    capacity_type = row.get("capacity_type", ON_DEMAND)
    if capacity_type not in CAPACITY_TYPES:
        raise ValueError(f"capacity_type must be one of {', '.join(CAPACITY_TYPES)}")
    end = row.get("valid_to")
    return Price(
        provider=str(row.get("provider", "")),
        region=str(row.get("region", "")),
        zone=str(row.get("zone", "")),
        instance_type=name,
        capacity_type=capacity_type,
        nano_usd_per_hour=nano,
        valid_from_ns=_ns(row["valid_from"]) if "valid_from" in row else 0,
        valid_to_ns=None if end is None else _ns(end),
        source=Source.CUSTOM,
    )


def _refuse_other(row: Any, known: set[str], where: str) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no table")
    other = sorted(set(row) - known)
    if other:
        raise ValueError(f"{where}: unknown field {other[0]}")


def _amount(row: dict[str, Any], key: str, default: str | None = None) -> Decimal:
    raw = row.get(key, default)
    if raw is None:
        raise ValueError(f"{key} is missing")
    try:
        amount = Decimal(str(raw))
    except InvalidOperation:
        raise ValueError(f"{key} is no number") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{key} must not be negative or infinite")
    return amount


def _ns(value: Any) -> int:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime.combine(value, time(), UTC)
    else:
        raise ValueError("a date is written like 2026-01-31")
    return int(moment.timestamp()) * NANOSECONDS_PER_SECOND
