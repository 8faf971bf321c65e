"""The price book as it is kept."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from services.cost_engine.core.prices import Price, Source

_COLUMNS = (
    "provider",
    "region",
    "zone",
    "instance_type",
    "capacity_type",
    "source",
    "valid_from_ns",
    "valid_to_ns",
    "nano_usd_per_hour",
    "fetched_at_ns",
)
_KEY = ("instance_type", "provider", "region", "zone", "capacity_type", "source")


def load_prices(session: Session) -> list[Price]:
    rows = session.execute(text(f"SELECT {', '.join(_COLUMNS)} FROM price"))
    return [Price(**{**row._mapping, "source": Source(row.source)}) for row in rows]  # noqa: SLF001


def save_prices(session: Session, prices: Iterable[Price]) -> int:
    """What a cloud told: each price holds until the next of its kind, whenever that is heard of.

    The same price again only says that it holds still. How many kinds changed.
    """
    kinds: dict[tuple[str, ...], list[Price]] = {}
    for price in prices:
        kinds.setdefault(tuple(str(getattr(price, name)) for name in _KEY), []).append(price)
    changed = 0
    for told in kinds.values():
        known = _of_kind(session, told[0])
        chain = _chain([*known, *told])
        if [(price.valid_from_ns, price.valid_to_ns, price.nano_usd_per_hour) for price in known] != [
            (price.valid_from_ns, price.valid_to_ns, price.nano_usd_per_hour) for price in chain
        ]:
            changed += 1
            where = " AND ".join(f"{name} = :{name}" for name in _KEY)
            session.execute(text(f"DELETE FROM price WHERE {where}"), _values(told[0]))
            for price in chain:
                _save(session, price)
    return changed


def _chain(prices: Iterable[Price]) -> list[Price]:
    by_start = {price.valid_from_ns: price for price in prices}
    distinct: list[Price] = []
    for price in (by_start[start] for start in sorted(by_start)):
        if not distinct or distinct[-1].nano_usd_per_hour != price.nano_usd_per_hour:
            distinct.append(price)
    ends = [*(price.valid_from_ns for price in distinct[1:]), None]
    return [replace(price, valid_to_ns=end) for price, end in zip(distinct, ends, strict=True)]


def replace_source(session: Session, source: Source, prices: Iterable[Price]) -> None:
    """All of a source at once: what the operator wrote, or what comes with this version."""
    session.execute(text("DELETE FROM price WHERE source = :source"), {"source": source})
    for price in prices:
        _save(session, price)


def _of_kind(session: Session, price: Price) -> list[Price]:
    where = " AND ".join(f"{name} = :{name}" for name in _KEY)
    rows = session.execute(
        text(f"SELECT {', '.join(_COLUMNS)} FROM price WHERE {where} ORDER BY valid_from_ns"), _values(price)
    )
    return [Price(**{**row._mapping, "source": Source(row.source)}) for row in rows]  # noqa: SLF001


def _save(session: Session, price: Price) -> None:
    names = ", ".join(_COLUMNS)
    values = ", ".join(f":{name}" for name in _COLUMNS)
    session.execute(text(f"INSERT INTO price ({names}) VALUES ({values})"), _values(price))


def _values(price: Price) -> dict[str, Any]:
    return {name: getattr(price, name) for name in _COLUMNS}
