"""The price book: what a node costs at a time, where that is known from, and how well.

Prices hold for a range of time. Where there is none for a node, the nearest that is known stands in for it
and says so; where there is nothing, the answer is None and never 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from gpuloom.model.money import NANO_PER_USD
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND, NodeTraits

ON_DEMAND, SPOT, RESERVED = "on-demand", "spot", "reserved"
CAPACITY_TYPES = (ON_DEMAND, SPOT, RESERVED)
MAX_NANO_PER_HOUR = 1_000_000 * NANO_PER_USD
"""A machine that costs more is a mistake of whoever wrote it, and its sums would not fit a column."""
MAX_TIME_NS = 2**33 * NANOSECONDS_PER_SECOND
"""The year 2242: later times do not fit a column."""


class Quality(StrEnum):
    """EXACT: of the operator or of the cloud, for that time. CATALOGUE: of the list that comes with us.
    STALE: the last that was known. ESTIMATED: derived from another price."""

    EXACT = "exact"
    CATALOGUE = "catalogue"
    STALE = "stale"
    ESTIMATED = "estimated"


class Source(StrEnum):
    CUSTOM = "custom"
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True)
class Price:
    """`region` and `zone` may be empty: then it holds everywhere. `valid_to_ns` None: until another comes."""

    provider: str
    region: str
    zone: str
    instance_type: str
    capacity_type: str
    nano_usd_per_hour: int
    valid_from_ns: int
    valid_to_ns: int | None
    source: Source
    fetched_at_ns: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.nano_usd_per_hour, bool) or not isinstance(self.nano_usd_per_hour, int):
            raise ValueError("a price is a whole number of nano-dollars")
        if self.nano_usd_per_hour <= 0:
            raise ValueError(f"{self.instance_type}: a price must be above 0, not {self.nano_usd_per_hour}")
        if self.nano_usd_per_hour > MAX_NANO_PER_HOUR:
            most = MAX_NANO_PER_HOUR // NANO_PER_USD
            raise ValueError(f"{self.instance_type}: a price above {most:,} USD per hour is not believed")
        if self.capacity_type not in CAPACITY_TYPES:
            raise ValueError(f"{self.instance_type}: capacity type is one of {', '.join(CAPACITY_TYPES)}")
        if self.valid_to_ns is not None and self.valid_to_ns <= self.valid_from_ns:
            raise ValueError(f"{self.instance_type}: a price must hold for some time")
        if not 0 <= self.valid_from_ns <= MAX_TIME_NS or (self.valid_to_ns or 0) > MAX_TIME_NS:
            raise ValueError(f"{self.instance_type}: a price holds between 1970 and 2242")

    def holds_at(self, time_ns: int) -> bool:
        return self.valid_from_ns <= time_ns and (self.valid_to_ns is None or time_ns < self.valid_to_ns)

    @property
    def key(self) -> str:
        """Names it in rows of cost."""
        place = self.zone or self.region or "*"
        return f"{self.source}/{place}/{self.instance_type}/{self.capacity_type}@{self.valid_from_ns}"


@dataclass(frozen=True, slots=True)
class PricedAs:
    """A price as it is used for a node: `nano_usd_per_hour` differs from the price's if it is derived."""

    price: Price
    quality: Quality
    nano_usd_per_hour: int

    @property
    def key(self) -> str:
        suffix = "" if self.quality in (Quality.EXACT, Quality.CATALOGUE) else f"#{self.quality}"
        return f"{self.price.key}{suffix}"


@dataclass(frozen=True, slots=True)
class PriceSegment:
    start_ns: int
    end_ns: int
    price: PricedAs | None


@dataclass(frozen=True, slots=True)
class BookSettings:
    """`spot_permille` of an on-demand price stands in for a spot price that was never known."""

    spot_permille: int = 400
    reserved_permille: int = 1000


class PriceBook:
    """Immutable; a new one is made when prices come in."""

    def __init__(self, prices: Iterable[Price], settings: BookSettings | None = None) -> None:
        self._settings = settings or BookSettings()
        self._by_type: dict[str, list[Price]] = {}
        for price in prices:
            self._by_type.setdefault(price.instance_type, []).append(price)
        for listed in self._by_type.values():
            listed.sort(key=lambda price: (price.valid_from_ns, price.fetched_at_ns, price.key))

    def segments(self, traits: NodeTraits, start_ns: int, end_ns: int) -> list[PriceSegment]:
        """The stretch by what holds in it; neighbours with the same price are one."""
        cuts = {start_ns, end_ns}
        for price in self._candidates(traits):
            cuts.update(
                time
                for time in (price.valid_from_ns, price.valid_to_ns)
                if time is not None and start_ns < time < end_ns
            )
        times = sorted(cuts)
        found: list[PriceSegment] = []
        for first, last in pairwise(times):
            priced = self.at(traits, first)
            if found and found[-1].price == priced:
                found[-1] = PriceSegment(found[-1].start_ns, last, priced)
            else:
                found.append(PriceSegment(first, last, priced))
        return found

    def at(self, traits: NodeTraits, time_ns: int) -> PricedAs | None:
        """As the node is paid for; a capacity type that is not known is taken for on demand."""
        wanted = traits.capacity_type or ON_DEMAND
        found = self._direct(traits, wanted, time_ns)
        if found is not None or wanted == ON_DEMAND:
            return found
        listed = self.on_demand(traits, time_ns)
        if listed is None:
            return None
        permille = self._settings.spot_permille if wanted == SPOT else self._settings.reserved_permille
        rate = max(1, listed.nano_usd_per_hour * permille // 1000)
        return PricedAs(listed.price, Quality.ESTIMATED, rate)

    def on_demand(self, traits: NodeTraits, time_ns: int) -> PricedAs | None:
        return self._direct(traits, ON_DEMAND, time_ns)

    def _direct(self, traits: NodeTraits, capacity_type: str, time_ns: int) -> PricedAs | None:
        """The operator's own price first, then the zone's, the region's, the last known, another region's."""
        candidates = [price for price in self._candidates(traits) if price.capacity_type == capacity_type]
        own = [price for price in candidates if price.source is Source.CUSTOM and _near(price, traits)]
        for group in (own, [price for price in candidates if _near(price, traits)]):
            holding = [price for price in group if price.holds_at(time_ns)]
            if holding:
                return _as_is(max(holding, key=lambda price: _rank(price, traits)))
        near = [price for price in candidates if _near(price, traits) and price.valid_from_ns <= time_ns]
        if near:
            last = max(near, key=lambda price: (price.valid_from_ns, _rank(price, traits)))
            return PricedAs(last, Quality.STALE, last.nano_usd_per_hour)
        if not candidates:
            return None
        # Elsewhere, or only later: the cheapest would flatter, the dearest frighten.
        middle = sorted(candidates, key=lambda price: (price.nano_usd_per_hour, price.key))
        other = middle[len(middle) // 2]
        return PricedAs(other, Quality.ESTIMATED, other.nano_usd_per_hour)

    def _candidates(self, traits: NodeTraits) -> list[Price]:
        return [
            price
            for price in self._by_type.get(traits.instance_type, ())
            if not price.provider or not traits.provider or price.provider == traits.provider
        ]


def _near(price: Price, traits: NodeTraits) -> bool:
    if price.zone and price.zone != traits.zone:
        return False
    return not price.region or price.region == traits.region


def _rank(price: Price, traits: NodeTraits) -> tuple[bool, bool, bool, int, int, str]:
    """A closer place and a livelier source first, then the newest."""
    fetched = price.source is not Source.CATALOGUE
    return bool(price.zone), bool(price.region), fetched, price.valid_from_ns, price.fetched_at_ns, price.key


def _as_is(price: Price) -> PricedAs:
    quality = Quality.CATALOGUE if price.source is Source.CATALOGUE else Quality.EXACT
    return PricedAs(price, quality, price.nano_usd_per_hour)
