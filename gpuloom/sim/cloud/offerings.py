"""What the simulated cloud offers by default: every instance type of one provider in every zone. Pure.

The prices are made up (by the GPUs' memory) but in proportion; real ones are the catalogue's business.
"""

from gpuloom.catalog import Catalog, InstanceType
from gpuloom.sim.cloud.model import CapacityType, Offering, OfferingKey

ZONES = ("zone-a", "zone-b", "zone-c")
_NANO_USD_PER_GIB_HOUR = 50_000_000
_SPOT_PERCENT = 35


def default_offerings(catalog: Catalog, provider: str = "aws") -> tuple[Offering, ...]:
    return tuple(
        _offering(kind, zone, capacity_type)
        for kind in catalog.instances
        if kind.provider == provider
        for zone in ZONES
        for capacity_type in CapacityType
    )


def _offering(kind: InstanceType, zone: str, capacity_type: CapacityType) -> Offering:
    price = kind.gpu_count * kind.gpu.memory_mib * _NANO_USD_PER_GIB_HOUR // 1024
    if capacity_type is CapacityType.SPOT:
        price = price * _SPOT_PERCENT // 100
    return Offering(OfferingKey(kind.name, zone, capacity_type), kind.provider, kind.gpu_count, price)
