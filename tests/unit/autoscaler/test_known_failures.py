"""What users of other autoscalers hit, as tests; those with other subjects are in the files beside."""

from dataclasses import replace
from datetime import timedelta

from gpuloom.model.claims import GpuNodeClaim
from gpuloom.model.objects import ObjectMeta
from gpuloom.model.policies import (
    AutoscalingPolicy,
    AutoscalingPolicySpec,
    CapacityType,
    CloudProvider,
    NodePool,
)
from services.autoscaler.core.buying.mix import Mix
from services.autoscaler.core.buying.offerings import Book, book_of
from services.autoscaler.core.buying.table import Market, Table, offering_table
from services.autoscaler.core.buying.tiers import TierTargets, targets_of
from services.autoscaler.core.lifecycle.machines import CloudView, Group, PricedOffering
from services.autoscaler.core.scaling.policies import Effective, cooldown_start, mix_of
from services.autoscaler.core.scaling.scale_down import DownSettings, Resident, decide_scale_down
from services.autoscaler.core.scaling.scale_up import Bounds, Pressure, decide_scale_up
from tests.unit.autoscaler.builders import CATALOG, NOW, a_pod, an_offering
from tests.unit.autoscaler.test_plan import planned
from tests.unit.autoscaler.test_scale_down import (
    OLD,
    SMALL,
    a_claim,
    a_policy,
    a_situation,
    failed,
    goes,
    idle,
)

SPOT, FIRM = CapacityType.SPOT, CapacityType.ON_DEMAND
SHARES = TierTargets({SPOT: 0.6, FIRM: 0.35, CapacityType.RESERVED: 0.05}, on_demand_floor=1)
PRINTED_POOLS = (
    NodePool("spot-pool", max_size=50, instance_types=(SMALL,), capacity_type=SPOT, priority=10),
    NodePool("on-demand-pool", max_size=30, instance_types=(SMALL,), capacity_type=FIRM, priority=5),
)
PRINTED_OFFERINGS = [
    an_offering(SMALL, 0.4, tier=SPOT, pool="spot-pool", priority=10),
    an_offering(SMALL, 1.0, tier=FIRM, pool="on-demand-pool", priority=5),
]


def tiers_of(plan_nodes: object) -> list[CapacityType]:
    return [node.offering.key.capacity_type for node in plan_nodes]  # type: ignore[attr-defined]


def test_f4_a_pool_without_any_node_is_planned_from_the_catalogue() -> None:
    """Nothing of it was ever seen: neither a node, nor a tag, nor a machine in its group."""
    spec = AutoscalingPolicySpec(
        CloudProvider.AWS, pools=(NodePool("pool", instance_types=("p4d.24xlarge",)),)
    )
    view = CloudView(CloudProvider.AWS, groups=(Group("asg", "pool", 0, 10),))

    table = offering_table(spec, Market(view), CATALOG, Book(), NOW)

    (offering,) = table.offerings
    assert (offering.instance.gpu_count, offering.instance.gpu.family) == (8, "A100")
    eight = a_pod("eight", milli=8000, cpu="8", memory="64Gi")
    assert len(planned([eight], offerings=[offering]).nodes) == 1


def test_f5_after_a_failed_launch_the_next_best_is_bought_at_once() -> None:
    """Its offering is backed off, and the cooldown does not stand in the way of the next."""
    asked = NOW - timedelta(seconds=20)
    refused = failed("refused", 0.1)
    refused = replace(refused, status=replace(refused.status, requested=asked))
    offered = [
        PricedOffering(SMALL, "zone-a", SPOT, 4 * 10**8),
        PricedOffering(SMALL, "zone-b", SPOT, 5 * 10**8),
    ]
    policy = a_policy()
    book = book_of([refused], NOW)
    market = Market(CloudView(CloudProvider.SIMULATED), offered)
    table = offering_table(policy.policy.spec, market, CATALOG, book, NOW)
    waiting = replace(a_pod("waits"), since=OLD)
    seen = a_situation(policy=policy, pending=[waiting], table=table)

    up = decide_scale_up(replace(seen, last_scale_up=cooldown_start(asked, [refused])))

    assert [str(node.offering.key) for node in up.nodes] == ["g5.xlarge/zone-b/spot"]
    assert "none left" in table.rejected[0][1]
    assert "cooldown" in decide_scale_up(replace(seen, last_scale_up=cooldown_start(asked, []))).held


def test_f5_the_cooldown_of_a_launch_that_works_stays() -> None:
    worked = a_claim("worked")

    assert cooldown_start(NOW, [worked]) == NOW
    assert cooldown_start(NOW, [failed("long-ago", 60)]) == NOW
    assert cooldown_start(None, [failed("now", 0)]) is None


def test_f6_failures_far_apart_do_not_add_up() -> None:
    key = an_offering(SMALL, 1.0, tier=SPOT).key
    row = [failed(f"c{at}", at) for at in (3, 2, 1)]
    apart = [failed(f"c{at}", 60.0 * at) for at in (9, 5, 0)]

    assert book_of(row, NOW).of(key).failures == 3
    assert book_of(apart, NOW).of(key).failures == 1


def test_f7_after_a_fallback_spot_comes_back_by_itself() -> None:
    """While spot is not to be had everything is on-demand; then its share is the furthest behind."""
    fallback = planned([a_pod(f"p{n}") for n in range(3)], offerings=PRINTED_OFFERINGS[1:], mix=Mix(SHARES))
    counts = {("on-demand-pool", PRINTED_OFFERINGS[1].key): 3}

    later = planned(
        [a_pod(f"q{n}") for n in range(3)], offerings=PRINTED_OFFERINGS, mix=Mix(SHARES, {}, counts)
    )

    assert tiers_of(fallback.nodes) == [FIRM] * 3
    assert tiers_of(later.nodes) == [SPOT] * 3


def test_f8_the_printed_pools_come_to_six_spot_and_four_on_demand_nodes_whatever_their_priorities() -> None:
    plan = planned([a_pod(f"p{n}") for n in range(10)], offerings=PRINTED_OFFERINGS, mix=Mix(SHARES))

    assert sorted(tiers_of(plan.nodes)) == [FIRM] * 4 + [SPOT] * 6


def test_f8_one_type_in_one_zone_does_not_hold_all_of_spot() -> None:
    zones = [an_offering(SMALL, 0.40 + at / 100, tier=SPOT, zone=f"zone-{z}") for at, z in enumerate("abc")]
    dear = an_offering(SMALL, 4.0, tier=SPOT, zone="zone-d")
    spot = TierTargets({SPOT: 1.0})
    pods = [a_pod(f"p{n}") for n in range(6)]

    spread = planned(pods, offerings=zones, mix=Mix(spot, diversify=True))
    alone = planned(pods, offerings=[zones[0], dear], mix=Mix(spot, diversify=True))
    as_cheap_as_can_be = planned(pods, offerings=zones, mix=Mix(spot))

    by_zone = [node.offering.key.zone for node in spread.nodes]
    assert max(map(by_zone.count, set(by_zone))) <= 3
    assert {node.offering.key.zone for node in alone.nodes} == {"zone-a"}
    assert {node.offering.key.zone for node in as_cheap_as_can_be.nodes} == {"zone-a"}


def test_f8_a_floor_of_nodes_that_are_not_on_spot_holds_once_there_are_any() -> None:
    mostly_spot = TierTargets({SPOT: 0.99, FIRM: 0.01}, on_demand_floor=2)

    assert mostly_spot.ranked({})[0] is SPOT
    assert mostly_spot.ranked({SPOT: 1})[0] is FIRM
    assert mostly_spot.ranked({SPOT: 5, FIRM: 1})[0] is FIRM
    assert mostly_spot.ranked({SPOT: 5, FIRM: 2})[0] is SPOT


def test_a_pools_own_spot_share_counts_for_itself_beside_other_pools() -> None:
    pools = (NodePool("steady", spot_share=0.0), NodePool("cheap", spot_share=1.0), NodePool("mixed"))
    policy = a_policy(pools=pools)
    mix = mix_of(policy, [], 0.0, 0)
    both = [
        an_offering(SMALL, 0.4 if t is SPOT else 1.0, tier=t, pool=p.name)
        for p in pools
        for t in (SPOT, FIRM)
    ]

    first = {one.pool: one.key.capacity_type for one in mix.choices(both, [])[0]}

    assert first == {"steady": FIRM, "cheap": SPOT, "mixed": SPOT}
    taken = [one for one in both if one.pool == "mixed" and one.key.capacity_type is SPOT]
    second = {one.pool: one.key.capacity_type for one in mix.choices(both, taken)[0]}
    assert second == {"steady": FIRM, "cheap": SPOT, "mixed": FIRM}


def test_without_tiers_the_spot_share_holds_and_the_rest_is_on_demand() -> None:
    spec = AutoscalingPolicySpec(CloudProvider.SIMULATED, multi_tier=False, spot_share=0.3)

    assert targets_of(spec, None, 0.0).shares == {SPOT: 0.3, FIRM: 0.7, CapacityType.RESERVED: 0.0}
    none = replace(spec, spot=False)
    assert SPOT not in targets_of(none, None, 0.0).ranked({})


def test_more_than_a_tenth_of_interruptions_lowers_the_spot_share() -> None:
    spec = a_policy().policy.spec

    calm, rough = targets_of(spec, None, 0.10), targets_of(spec, None, 0.30)

    assert calm.shares[SPOT] == 0.6
    assert 0 < rough.shares[SPOT] < 0.4
    assert rough.shares[FIRM] > calm.shares[FIRM]


def test_minimums_follow_the_tiers_too() -> None:
    policy = Effective(
        AutoscalingPolicy(
            ObjectMeta("p"), AutoscalingPolicySpec(CloudProvider.SIMULATED, min_nodes=10, pools=PRINTED_POOLS)
        ),
        {},
    )

    up = decide_scale_up(a_situation(policy=policy, table=Table(tuple(PRINTED_OFFERINGS))))

    assert up.reason == "the minimum size is not reached"
    assert sorted(tiers_of(up.nodes)) == [FIRM] * 4 + [SPOT] * 6


def test_f10_what_was_given_back_is_not_bought_again_for_the_same_pods() -> None:
    """Down and up agree: after a node went, the pods that were there buy none."""
    one, two = a_claim("one"), a_claim("two")
    seen = a_situation(one, two)

    assert goes(seen, idle(one)) == "one"
    after = a_situation(two, pending=[replace(a_pod("late", milli=500), since=OLD)])
    assert not decide_scale_up(after).nodes


def test_f22_a_budget_that_never_allows_keeps_its_node_rather_than_leaving_it_cordoned() -> None:
    one, two = a_claim("one"), a_claim("two")
    kept = Resident(a_pod("x", milli=100), "team/x", True, stays="is kept by PodDisruptionBudget pdb")

    found = decide_scale_down(a_situation(one, two), [idle(one, residents=[kept])], [], DownSettings())

    assert found.claim is None
    assert found.held == "one: team/x is kept by PodDisruptionBudget pdb"


def warm(floor: int, used: float, *claims: GpuNodeClaim, usd: int = 100) -> int:
    pressure = Pressure(floor_gpus=floor, floor_reason="a forecast wants it", used_gpus=used)
    bounds = Bounds(warm_nano_usd_per_hour=usd * 10**9)
    return len(decide_scale_up(a_situation(*claims, pressure=pressure, limits=bounds)).nodes)


def test_f24_a_forecast_raises_the_floor_and_its_cost_is_capped_for_good() -> None:
    """Not by round: what is warm already counts."""
    upcoming = [a_claim(f"c{n}", ready=None) for n in range(5)]

    assert warm(3, 0) == 3
    assert warm(50, 0, usd=5) == 5
    assert warm(50, 0, *upcoming, usd=5) == 0
    assert warm(50, 2, *upcoming, usd=5) == 2
    assert warm(50, 0, usd=0) == 0


def test_f24_the_cap_holds_at_the_price_of_what_is_bought_not_of_the_cheapest() -> None:
    """Tiers want machines at 3 USD beside those at 1; a machine of eight GPUs counts whole."""
    dear = [an_offering(SMALL, 1.0, tier=SPOT), an_offering(SMALL, 3.0, tier=FIRM)]
    pressure = Pressure(floor_gpus=50, floor_reason="a forecast wants it")
    bounds = Bounds(warm_nano_usd_per_hour=10 * 10**9)

    mixed = decide_scale_up(a_situation(pressure=pressure, limits=bounds, table=Table(tuple(dear))))
    large = Table((an_offering("p4d.24xlarge", 32.0),))
    whole = decide_scale_up(a_situation(pressure=pressure, limits=bounds, table=large))

    prices = [node.offering.nano_usd_per_hour for node in mixed.nodes]
    assert len(set(prices)) == 2
    assert sum(prices) <= 10 * 10**9
    assert not whole.nodes


def test_f24_warmth_that_nobody_used_goes_once_the_forecast_no_longer_wants_it() -> None:
    one, two = a_claim("one"), a_claim("two")
    wanted = Pressure(floor_gpus=2, floor_reason="a forecast wants it")
    unpaid = Bounds(warm_nano_usd_per_hour=10**9)

    assert not goes(a_situation(one, two, pressure=wanted), idle(one), idle(two))
    assert goes(a_situation(one, two, pressure=Pressure()), idle(one), idle(two)) == "one"
    assert goes(a_situation(one, two, pressure=wanted, limits=unpaid), idle(one), idle(two)) == "one"
