"""The printed example of savings, and what is remembered across a restart."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from gpuloom.model.claims import ClaimOffering, GpuNodeClaim
from gpuloom.model.policies import CapacityType, ScaleDirection, ScalingAction
from gpuloom.runtime.clock import SystemClock
from gpuloom.store.database import Database
from gpuloom.store.settings import StoreConfig
from services.autoscaler.core.buying.bill import monthly_bill
from services.autoscaler.core.forecasting.series import Sample
from services.autoscaler.core.scaling.policy_status import Taken
from services.autoscaler.store.history import MIGRATIONS, SqlHistory
from tests.unit.autoscaler.builders import NOW
from tests.unit.autoscaler.test_scale_down import a_claim


def a_v100(name: str, tier: CapacityType, nano: int) -> GpuNodeClaim:
    claim = a_claim(name, price_nano_usd_per_hour=nano)
    return replace(claim, spec=replace(claim.spec, offering=ClaimOffering("p3.2xlarge", tier)))


def test_the_printed_example_of_ten_nodes_at_60_percent_spot() -> None:
    """$5,184 and $8,812 a month, $8,034 saved, 61 % on spot; the document rounds 2,203.20 down."""
    spot = [a_v100(f"s{n}", CapacityType.SPOT, 1_200_000_000) for n in range(6)]
    firm = [a_v100(f"f{n}", CapacityType.ON_DEMAND, 3_060_000_000) for n in range(4)]

    bill = monthly_bill([*spot, *firm], {"p3.2xlarge": 3_060_000_000})

    assert bill.by_tier[CapacityType.SPOT] == pytest.approx(5184)
    assert bill.by_tier[CapacityType.ON_DEMAND] == pytest.approx(8812.8)
    assert bill.saved == pytest.approx(8035.2)
    assert bill.spot_percentage == pytest.approx(60.8, abs=0.1)


def test_a_machine_without_a_price_is_not_free_but_unknown() -> None:
    claim = replace(a_claim("x"), status=replace(a_claim("x").status, price_nano_usd_per_hour=None))

    assert monthly_bill([claim], {}).by_tier == {}


async def test_samples_and_actions_outlive_the_process(tmp_path: Path) -> None:
    config = StoreConfig(url=make_url(f"sqlite+pysqlite:///{tmp_path}/history.db"))
    taken = Taken(
        "policy", ScalingAction(ScaleDirection.UP, NOW, "pool", 2, "2 pods wait"), ("a", "b"), 10**9
    )
    samples = [Sample("utilization", NOW + timedelta(minutes=at), at / 10) for at in range(3)]
    async with Database(config, SystemClock()) as database:
        await MIGRATIONS.upgrade(database)
        history = SqlHistory(database)
        await history.append(samples)
        await history.append(samples[:1])
        await history.add_action(taken)

    async with Database(config, SystemClock()) as database:
        await MIGRATIONS.upgrade(database)
        history = SqlHistory(database)
        assert await history.read("utilization", NOW) == samples
        assert await history.actions(10) == [taken]
        assert await history.forget(NOW + timedelta(minutes=1)) == 1
