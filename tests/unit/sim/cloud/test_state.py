"""The simulated cloud's books, by fake time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.sim.cloud.model import (
    CapacityType,
    Instance,
    InstanceGroup,
    InstanceState,
    NoCapacityError,
    Offering,
    OfferingKey,
    QuotaError,
    ThrottledError,
    TokenReusedError,
)
from gpuloom.sim.cloud.state import CloudSettings, CloudState, LaunchRequest

ON_DEMAND = OfferingKey("p5.48xlarge", "zone-a", CapacityType.ON_DEMAND)
SPOT = OfferingKey("p5.48xlarge", "zone-a", CapacityType.SPOT)


def a_cloud(stock: int | None = None, **settings: object) -> CloudState:
    offerings = [Offering(key, "aws", 8, 1_000_000_000, stock) for key in (ON_DEMAND, SPOT)]
    return CloudState(offerings, CloudSettings(**settings))  # type: ignore[arg-type]


def live(cloud: CloudState) -> list[Instance]:
    states = (InstanceState.PENDING, InstanceState.RUNNING)
    return [one for one in cloud.instances() if one.state in states]


def test_an_instance_boots_after_a_while_and_is_gone_a_while_after_its_end() -> None:
    cloud = a_cloud(boot_delay_s=(10.0, 20.0), shutdown_s=5.0)
    launched = cloud.launch(LaunchRequest(ON_DEMAND), now_s=0.0)

    cloud.advance(9.0)
    booting = cloud.instance(launched.instance_id).state
    cloud.advance(20.0)
    running = cloud.instance(launched.instance_id).state
    cloud.terminate(launched.instance_id, 30.0)
    cloud.advance(35.0)

    assert (booting, running) == (InstanceState.PENDING, InstanceState.RUNNING)
    assert cloud.instance(launched.instance_id).state is InstanceState.TERMINATED


def test_equal_seeds_and_calls_give_equal_instances() -> None:
    first, second = a_cloud(seed=7), a_cloud(seed=7)

    for cloud in (first, second):
        cloud.launch(LaunchRequest(SPOT), 0.0)
        cloud.launch(LaunchRequest(ON_DEMAND), 1.0)

    assert first.instances() == second.instances()


def test_a_launch_with_the_same_token_is_the_same_instance() -> None:
    cloud = a_cloud()
    first = cloud.launch(LaunchRequest(SPOT, token="claim"), 0.0)

    again = cloud.launch(LaunchRequest(SPOT, token="claim"), 5.0)

    assert again == first
    assert len(cloud.instances()) == 1
    with pytest.raises(TokenReusedError):
        cloud.launch(LaunchRequest(ON_DEMAND, token="claim"), 6.0)


def test_quotas_stocks_and_the_rate_of_calls_limit_what_can_be_had() -> None:
    quota = a_cloud(gpu_quota={CapacityType.SPOT: 8})
    quota.launch(LaunchRequest(SPOT), 0.0)
    with pytest.raises(QuotaError, match="8 of 8 spot GPUs"):
        quota.launch(LaunchRequest(SPOT), 0.0)
    quota.launch(LaunchRequest(ON_DEMAND), 0.0)

    with pytest.raises(NoCapacityError, match="zone-a/spot"):
        a_cloud(stock=0).launch(LaunchRequest(SPOT), 0.0)

    throttled = a_cloud(burst=1, calls_per_s=1.0)
    throttled.count_call(0.0)
    with pytest.raises(ThrottledError):
        throttled.count_call(0.5)
    throttled.count_call(1.5)


def test_an_interrupted_spot_instance_ends_after_its_notice_and_its_group_replaces_it() -> None:
    cloud = a_cloud(notice_s=120.0, boot_delay_s=(0.0, 0.0))
    cloud.put_group(InstanceGroup("pool", SPOT, desired=1))
    cloud.advance(0.0)
    (instance,) = live(cloud)

    cloud.interrupt(instance.instance_id, 10.0)
    cloud.advance(11.0)
    during = {one.instance_id for one in live(cloud)}
    cloud.advance(130.0)

    assert instance.instance_id in during
    assert len(during) == 2
    assert [one.instance_id for one in live(cloud)] == sorted(during - {instance.instance_id})


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 200.0)), max_size=20), st.integers(0, 4))
def test_a_group_comes_to_its_size_and_stock_is_never_lost(
    steps: list[tuple[int, float]], stock: int
) -> None:
    cloud = a_cloud(stock=stock, shutdown_s=5.0)
    cloud.put_group(InstanceGroup("pool", SPOT, max_size=5))
    now_s = 0.0

    for desired, passed_s in steps:
        cloud.set_desired("pool", desired)
        now_s += passed_s
        cloud.advance(now_s)
        (left,) = [one.stock for one in cloud.offerings() if one.key == SPOT]
        held = [one for one in cloud.instances() if one.state is not InstanceState.TERMINATED]
        assert left is not None
        assert left + len(held) == stock
    cloud.set_desired("pool", 3)
    for _ in range(3):
        now_s += 10.0
        cloud.advance(now_s)

    assert len(live(cloud)) == min(3, stock)
