"""The offerings of a policy's pools: which machines, where, on which tier, and at what price.

A group whose type or zone the cloud chooses is one offering, planned by its smallest member: whatever comes
holds at least that. A price that nobody tells is estimated and marked, never zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuloom.catalog.entries import Catalog, InstanceType
from gpuloom.errors import NotFoundError
from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.policies import AutoscalingPolicySpec, CapacityType, CloudProvider, NodePool
from services.autoscaler.core.buying.offerings import Book, Offering, OfferingKey, key_of
from services.autoscaler.core.lifecycle.machines import GROUPED, CloudView, Group, PricedOffering

NANO_USD_PER_GIB_HOUR = 50_000_000
"""Of GPU memory, on demand: the order of magnitude of list prices, for what has no price."""
SPOT_PERCENT, RESERVED_PERCENT = 35, 60
SIMULATED_TYPES = "aws"
UNKNOWN = "a machine type that is not known, so it is never asked for"


@dataclass(frozen=True, slots=True)
class Market:
    """What a policy's cloud has: its groups, what it says itself, and prices from elsewhere by offering."""

    view: CloudView
    offered: Sequence[PricedOffering] = ()
    prices: Mapping[OfferingKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """`rejected`: what is not asked for now, and why; `problems`: what somebody must mend, by pool; `unread`:
    pools whose machines are not known, and why."""

    offerings: tuple[Offering, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


def offering_table(
    spec: AutoscalingPolicySpec, market: Market, catalog: Catalog, book: Book, now: datetime
) -> Table:
    offerings: list[Offering] = []
    rejected: list[tuple[str, str]] = []
    problems: dict[str, str] = {}
    for pool in spec.pools:
        found, problem = _of_pool(pool, spec, market, catalog)
        if problem:
            problems[pool.name] = problem
        rejected.extend((f"{pool.name}: {name}", UNKNOWN) for name in _unknown_types(pool, spec, catalog))
        for one in found:
            reason = book.refusal(one.key, now)
            if reason:
                rejected.append((f"{pool.name}: {one.key}", reason))
            else:
                offerings.append(_with_risk(one, spec, book))
    unread = {pool.name: why for pool in spec.pools if (why := market.view.why_unknown(pool.name))}
    return Table(tuple(offerings), tuple(rejected), problems, unread)


def _unknown_types(pool: NodePool, spec: AutoscalingPolicySpec, catalog: Catalog) -> list[str]:
    source = _source(spec)
    return [name for name in pool.instance_types if _instance(catalog, source, name) is None]


def _source(spec: AutoscalingPolicySpec) -> str:
    return SIMULATED_TYPES if spec.provider is CloudProvider.SIMULATED else spec.provider.value


def _of_pool(
    pool: NodePool, spec: AutoscalingPolicySpec, market: Market, catalog: Catalog
) -> tuple[list[Offering], str]:
    types, problem = _types(pool, _source(spec), catalog)
    if spec.provider in GROUPED:
        group = market.view.group_of_pool(pool.name)
        if group is None:
            return [], market.view.why_unknown(pool.name)
        return _of_group(pool, group, types, market, catalog)
    if problem:
        return [], problem
    found = [_offering(pool, key, one, market) for one, key in _offered(pool, types, spec, market)]
    return found, ""


def _offered(
    pool: NodePool, types: Sequence[InstanceType], spec: AutoscalingPolicySpec, market: Market
) -> Iterable[tuple[InstanceType, OfferingKey]]:
    by_name = {one.name: one for one in types}
    for one in market.offered:
        wanted = one.instance_type in by_name and (not pool.zones or one.zone in pool.zones)
        if wanted and one.available and _tier_allowed(one.capacity_type, pool, spec):
            yield by_name[one.instance_type], OfferingKey(one.instance_type, one.zone, one.capacity_type)


def _of_group(
    pool: NodePool, group: Group, types: Sequence[InstanceType], market: Market, catalog: Catalog
) -> tuple[list[Offering], str]:
    provider = market.view.provider.value
    members = [_instance(catalog, provider, name) for name in group.instance_types]
    known = [one for one in members if one is not None] or list(types)
    if not known:
        return [], f"the machine type of group {group.name} is not known: name instanceTypes in the pool"
    smallest = min(known, key=lambda one: (one.gpu_count, one.gpu.memory_mib, one.vcpus, one.name))
    tier = pool.capacity_type or group.capacity_type or CapacityType.ON_DEMAND
    zone = group.zones[0] if len(group.zones) == 1 else ""
    return [_offering(pool, OfferingKey(smallest.name, zone, tier), smallest, market)], ""


def _offering(pool: NodePool, key: OfferingKey, instance: InstanceType, market: Market) -> Offering:
    price = _price(key, market)
    return Offering(
        pool=pool.name,
        key=key,
        instance=instance,
        nano_usd_per_hour=estimated_price(instance, key.capacity_type) if price is None else price,
        priority=pool.priority,
        labels=pool.labels,
        provider=market.view.provider,
        estimated=price is None,
    )


def estimated_price(instance: InstanceType, tier: CapacityType) -> int:
    price = instance.gpu_count * instance.gpu.memory_mib * NANO_USD_PER_GIB_HOUR // 1024
    percent = {CapacityType.SPOT: SPOT_PERCENT, CapacityType.RESERVED: RESERVED_PERCENT}.get(tier, 100)
    return price * percent // 100


def priced(claim: GpuNodeClaim, markets: Iterable[Market]) -> GpuNodeClaim:
    """With what the same machine costs now, if nobody told when it came: it was there already."""
    if claim.status.price_nano_usd_per_hour is not None:
        return claim
    told = (_price(key_of(claim), market) for market in markets)
    price = next((one for one in told if one is not None), None)
    return replace(claim, status=replace(claim.status, price_nano_usd_per_hour=price))


def _price(key: OfferingKey, market: Market) -> int | None:
    told = {
        OfferingKey(one.instance_type, one.zone, one.capacity_type): one.nano_usd_per_hour
        for one in market.offered
    }
    for candidate in (key, OfferingKey(key.instance_type, "", key.capacity_type)):
        if candidate in told:
            return told[candidate]
        if candidate in market.prices:
            return market.prices[candidate]
    # Without a zone the dearest one is what it may cost.
    of_type = [
        price
        for known, price in told.items()
        if known.instance_type == key.instance_type and known.capacity_type is key.capacity_type
    ]
    return max(of_type, default=None)


def _types(pool: NodePool, provider: str, catalog: Catalog) -> tuple[list[InstanceType], str]:
    if pool.instance_types:
        found = [_instance(catalog, provider, name) for name in pool.instance_types]
        known = [one for one in found if one is not None]
        unknown = [name for name, one in zip(pool.instance_types, found, strict=True) if one is None]
        problem = f"machine types that are not known: {', '.join(unknown)}" if unknown and not known else ""
        return _of_model(known, pool, catalog), problem
    if pool.gpu_type is None:
        return [], f"pool {pool.name} names neither instanceTypes nor gpuType"
    found_types = _of_model([one for one in catalog.instances if one.provider == provider], pool, catalog)
    return found_types, "" if found_types else f"no machine type has the GPU {pool.gpu_type}"


def _of_model(types: Iterable[InstanceType], pool: NodePool, catalog: Catalog) -> list[InstanceType]:
    """A pool that names types by hand means them, also beside a gpuType that only some of them have."""
    listed = list(types)
    if pool.gpu_type is None:
        return listed
    models = _models(pool.gpu_type, catalog)
    return [one for one in listed if one.gpu.name in models] or (listed if pool.instance_types else [])


def _models(gpu_type: str, catalog: Catalog) -> set[str]:
    """`nvidia-tesla-v100` names a family: every model of it will do."""
    names = set(catalog.model_names(gpu_type))
    found = catalog.find_gpu(gpu_type)
    if found is not None:
        names |= {gpu.name for gpu in catalog.gpus if gpu.family == found.family}
    return names


def _instance(catalog: Catalog, provider: str, name: str) -> InstanceType | None:
    try:
        return catalog.instance(provider, name)
    except NotFoundError:
        return None


def _tier_allowed(tier: CapacityType, pool: NodePool, spec: AutoscalingPolicySpec) -> bool:
    if pool.capacity_type is not None:
        return tier is pool.capacity_type
    return spec.spot or tier is not CapacityType.SPOT


def _with_risk(offering: Offering, spec: AutoscalingPolicySpec, book: Book) -> Offering:
    """Where it should be spread, what was hard to get or was taken back counts as dearer."""
    if not spec.diversify:
        return offering
    risk = 1.0 - book.of(offering.key).availability
    if offering.key.capacity_type is CapacityType.SPOT:
        risk += min(0.5, book.interruption_rate)
    return replace(offering, risk=risk)
