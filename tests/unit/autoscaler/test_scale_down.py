"""Which nodes go, and every reason to keep one."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpuloom.model.claims import ClaimOffering, ClaimState, GpuNodeClaim, GpuNodeClaimSpec, GpuNodeClaimStatus
from gpuloom.model.objects import ObjectMeta
from gpuloom.model.policies import (
    AutoscalingPolicy,
    AutoscalingPolicySpec,
    CapacityType,
    CloudProvider,
    NodePool,
)
from services.autoscaler.core.buying.offerings import OfferingKey, backoff_s, book_of
from services.autoscaler.core.buying.table import Market, Table, offering_table
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.machines import CloudView, Group, PricedOffering
from services.autoscaler.core.scaling.consolidation import decide_consolidation, may_leave
from services.autoscaler.core.scaling.policies import Effective, effective_policies
from services.autoscaler.core.scaling.scale_down import (
    DownSettings,
    NodeLoad,
    Resident,
    UseBook,
    decide_scale_down,
)
from services.autoscaler.core.scaling.scale_up import Pressure, Situation, decide_scale_up
from tests.unit.autoscaler.builders import CATALOG, NOW, a_node, a_pod, an_offering

SMALL = "g5.xlarge"
SETTINGS = DownSettings()
OLD = NOW - timedelta(hours=2)


def a_claim(name: str, ready: datetime | None = OLD, **status: object) -> GpuNodeClaim:
    spec = GpuNodeClaimSpec(
        "policy", "pool", ClaimOffering(SMALL, CapacityType.SPOT, "zone-a"), "A10G", 1, f"token-{name}"
    )
    state = ClaimState.GPU_READY if ready is not None else ClaimState.LAUNCHED
    told = GpuNodeClaimStatus(state, name, f"i-{name}", 10**9, OLD, OLD, OLD, ready)
    return GpuNodeClaim(ObjectMeta(name), spec, replace(told, **status))  # type: ignore[arg-type]


def a_policy(**options: object) -> Effective:
    pools = (NodePool("pool", instance_types=(SMALL,)),)
    spec = AutoscalingPolicySpec(CloudProvider.SIMULATED, pools=pools)
    spec = replace(spec, **options)  # type: ignore[arg-type]
    return Effective(AutoscalingPolicy(ObjectMeta("policy"), spec), {})


def a_situation(*claims: GpuNodeClaim, policy: Effective | None = None, **options: object) -> Situation:
    seen = Situation(
        policy or a_policy(),
        claims,
        (),
        [a_node(claim.meta.name, SMALL) for claim in claims],
        Table((an_offering(SMALL, 1.0),)),
        NOW,
    )
    return replace(seen, **options)  # type: ignore[arg-type]


def idle(claim: GpuNodeClaim, **options: object) -> NodeLoad:
    load = NodeLoad(claim, a_node(claim.meta.name, SMALL), (), 0.0, OLD)
    return replace(load, **options)  # type: ignore[arg-type]


def goes(seen: Situation, *loads: NodeLoad, settings: DownSettings = SETTINGS) -> str:
    found = decide_scale_down(seen, loads, [], settings)
    return "" if found.claim is None else found.claim.meta.name


def test_an_idle_node_goes_one_at_a_time() -> None:
    one, two = a_claim("one"), a_claim("two")

    assert goes(a_situation(one, two), idle(one), idle(two)) == "one"


def test_f3_a_node_is_young_from_when_its_gpus_were_ready() -> None:
    young = a_claim("young", ready=NOW - timedelta(seconds=599))

    assert not goes(a_situation(young), idle(young))


def test_f11_missing_samples_are_not_idle_and_cpu_pods_do_not_keep_a_gpu_node() -> None:
    claim = a_claim("one")
    seen = a_situation(claim)
    daemon_free = Resident(None, "kube-system/dns", uses_gpu=False)

    assert not goes(seen, idle(claim, mean_use=None))
    assert not goes(seen, idle(claim, quiet_since=None))
    assert goes(seen, idle(claim, residents=[daemon_free])) == "one"
    book = UseBook(600)
    for minute in range(12):
        book.observe(NOW + timedelta(minutes=minute), {"uid": (None if minute < 8 else 0.1, False)})
    assert book.mean_use("uid") is None


@pytest.mark.parametrize(
    ("silent", "known"),
    [(range(0), True), (range(40, 42), True), (range(115, 121), False), (range(20, 100), False)],
)
def test_f11_what_fell_silent_is_not_idle_though_enough_was_told_before(silent: range, known: bool) -> None:
    """Every five seconds for ten minutes: what is busy may be what stops telling."""
    book = UseBook(600)
    for look in range(121):
        use = None if look in silent else 0.05
        book.observe(NOW + timedelta(seconds=5 * look), {"uid": (use, True)})

    assert (book.mean_use("uid") is not None) is known


def test_a_node_of_a_group_at_its_minimum_stays() -> None:
    """The cloud would bring another for it."""
    one, two = a_claim("one"), a_claim("two")

    def with_least(least: int) -> Situation:
        return a_situation(one, two, groups=(Group("asg", "pool", 2, 10, least),))

    assert not goes(with_least(2), idle(one), idle(two))
    assert goes(with_least(1), idle(one), idle(two)) == "one"


def test_a_node_in_use_goes_only_if_its_pods_fit_elsewhere_and_may_move() -> None:
    one, two = a_claim("one"), a_claim("two")
    mover = Resident(a_pod("small", milli=500), "team/small", uses_gpu=True)
    whole = Resident(a_pod("whole"), "team/whole", uses_gpu=True)
    stuck = replace(mover, stays="is kept by PodDisruptionBudget training-pdb")
    seen = a_situation(one, two)

    assert goes(seen, idle(one, residents=[mover])) == "one"
    assert not goes(seen, idle(one, residents=[mover], mean_use=0.3))
    assert not goes(seen, idle(one, residents=[stuck]))
    assert not goes(a_situation(one), idle(one, residents=[whole]))
    assert not goes(seen, idle(one, opted_out=True))


def test_f10_a_node_that_would_be_bought_again_stays() -> None:
    one = a_claim("one")
    waiting = replace(a_pod("late"), since=NOW)

    assert not goes(a_situation(one, pending=[waiting]), idle(one))


@pytest.mark.parametrize(
    ("busy_gpus", "told_gpus", "stays"), [(1.0, 2, True), (0.8, 2, False), (1.7, 3, True), (1.0, 1, False)]
)
def test_f10_a_node_stays_if_those_left_would_be_busy_enough_to_buy_it_again(
    busy_gpus: float, told_gpus: int, stays: bool
) -> None:
    idle_one, busy = a_claim("idle"), a_claim("busy")
    pressure = Pressure(utilization=busy_gpus / told_gpus)
    seen = a_situation(idle_one, busy, pressure=pressure, busy_gpus=busy_gpus, told_gpus=told_gpus)

    found = decide_scale_down(seen, [idle(idle_one)], [], SETTINGS)

    assert (found.claim is None) is stays
    assert ("above 80%, and a node would be bought again" in found.held) is stays
    # Where none can be had, none would be bought again.
    assert goes(replace(seen, table=Table()), idle(idle_one)) == "idle"


def test_f10_use_goes_where_its_pods_go_and_ends_where_there_are_none() -> None:
    one, two = a_claim("one"), a_claim("two")
    mover = Resident(a_pod("small", milli=500), "team/small", uses_gpu=True)
    seen = a_situation(one, two, busy_gpus=0.9, told_gpus=2)

    assert not goes(seen, idle(one, residents=[mover], mean_use=0.15))
    assert goes(seen, idle(one, mean_use=0.15)) == "one"


def test_f10_a_node_that_a_trigger_would_buy_again_stays() -> None:
    """At the maximum the trigger adds nothing, but it would take the place that becomes free."""
    one = a_claim("one")
    queue = Pressure(triggers={"queue": "queue is 12, above 10"})
    seen = a_situation(one, policy=a_policy(max_nodes=1), pressure=queue)

    assert not decide_scale_up(seen).nodes
    assert not goes(seen, idle(one))
    assert "queue is 12, above 10" in decide_scale_down(seen, [idle(one)], [], SETTINGS).held


def test_limits_cooldowns_budgets_and_distrust_hold() -> None:
    one = a_claim("one")
    by_minimum = a_situation(one, policy=a_policy(min_nodes=1))
    recent = [NOW - timedelta(minutes=at) for at in range(10)]

    assert not goes(by_minimum, idle(one))
    assert not goes(a_situation(one, frozen_reason="2 of 4 GPU nodes can't be trusted now"), idle(one))
    assert decide_scale_down(a_situation(one), [idle(one)], recent, SETTINGS).claim is None
    last = NOW - timedelta(seconds=599)
    assert "cooldown" in decide_scale_down(a_situation(one), [idle(one)], [], SETTINGS, last).held
    warm = Pressure(floor_gpus=1, floor_reason="a forecast wants it")
    assert not goes(a_situation(one, pressure=warm), idle(one))


def test_use_and_triggers_add_one_node_and_wait_for_what_is_on_its_way() -> None:
    ready, coming = a_claim("ready"), a_claim("coming", ready=None)
    hot = Pressure(utilization=0.9)

    assert len(decide_scale_up(a_situation(ready, pressure=hot)).nodes) == 1
    assert not decide_scale_up(a_situation(ready, coming, pressure=hot)).nodes
    assert not decide_scale_up(a_situation(ready, pressure=Pressure(utilization=None))).nodes
    queue = Pressure(triggers={"queue": "queue is 12, above 10"})
    assert decide_scale_up(a_situation(ready, pressure=queue)).reason == "queue is 12, above 10"
    late = replace(a_situation(ready, pressure=hot), last_scale_up=NOW - timedelta(seconds=1))
    assert "cooldown" in decide_scale_up(late).held
    short = a_situation(ready, policy=a_policy(min_nodes=3))
    assert len(decide_scale_up(short).nodes) == 2


def test_a_minimum_that_can_not_be_had_now_is_told_and_holds_up_no_other_reason() -> None:
    pools = (NodePool("sold-out", min_size=2), NodePool("pool", instance_types=(SMALL,)))
    seen = a_situation(a_claim("ready"), policy=a_policy(pools=pools))

    assert "minimum" in decide_scale_up(seen).held
    hot = decide_scale_up(replace(seen, pressure=Pressure(utilization=0.9)))
    assert [node.offering.pool for node in hot.nodes] == ["pool"]
    warm = Pressure(floor_gpus=2, floor_reason="a forecast wants it")
    assert len(decide_scale_up(replace(seen, pressure=warm)).nodes) == 1


def failed(name: str, minutes_ago: float, reason: str = "NoCapacity") -> GpuNodeClaim:
    at = NOW - timedelta(minutes=minutes_ago)
    asked = replace(a_claim(name), status=life.requested(at))
    return replace(asked, status=life.failed(asked.status, life.CONDITION_LAUNCHED, reason, "none left", at))


def test_f6_an_offering_backs_off_longer_each_time_and_a_success_forgives() -> None:
    key = OfferingKey(SMALL, "zone-a", CapacityType.SPOT)
    twice = [failed("a", 10), failed("b", 1.5)]
    worked = a_claim("c", launched=NOW - timedelta(minutes=1))

    assert backoff_s(1) < backoff_s(2) < backoff_s(9) == backoff_s(20)
    assert not book_of(twice[:1], NOW).refusal(key, NOW)
    assert "none left" in book_of(twice, NOW).refusal(key, NOW)
    assert not book_of([*twice, worked], NOW).refusal(key, NOW)
    assert book_of(twice, NOW).of(key).availability < 1


def test_f6_a_machine_that_a_group_listed_and_never_made_is_no_success() -> None:
    key = OfferingKey(SMALL, "zone-a", CapacityType.SPOT)
    listed = [
        replace(
            one, status=replace(one.status, launched=one.status.requested, instance_id=f"i-{one.meta.name}")
        )
        for one in (failed("a", 3), failed("b", 2), failed("c", 1))
    ]

    assert book_of(listed, NOW).of(key).failures == 3
    assert book_of(listed, NOW).of(key).availability < 1


def test_f2_an_offering_whose_nodes_never_show_gpus_is_replaced_once_then_backed_off() -> None:
    key = OfferingKey(SMALL, "zone-a", CapacityType.SPOT)

    def bad(name: str, at: datetime) -> GpuNodeClaim:
        status = GpuNodeClaimStatus(ClaimState.REGISTERED, name, f"i-{name}", launched=at, registered=at)
        told = life.failed(status, life.CONDITION_GPU_READY, life.REASON_NO_GPUS, "0 of 1 GPUs", at)
        return replace(a_claim(name), status=told)

    first, second = bad("a", NOW - timedelta(minutes=5)), bad("b", NOW)

    assert not book_of([first], NOW).refusal(key, NOW)
    assert "0 of 1 GPUs" in book_of([first, second], NOW).refusal(key, NOW)


def test_interruptions_are_counted_for_each_spot_node_of_a_day() -> None:
    nodes = [a_claim(f"n{at}") for at in range(9)]
    lost = replace(
        a_claim("lost"),
        status=life.with_condition(
            a_claim("lost").status, life.CONDITION_INTERRUPTED, True, "SpotNotice", "", now=NOW
        ),
    )

    assert book_of([*nodes, lost], NOW).interruption_rate == 0.1
    assert book_of([*nodes, lost], NOW + timedelta(hours=25)).interruption_rate == 0


def test_a_pool_of_an_applied_policy_wins_over_the_charts_own() -> None:
    mine = replace(a_policy().policy, meta=ObjectMeta("production"))
    default = replace(a_policy().policy, meta=ObjectMeta("default"))

    first, second = effective_policies([default, mine])

    assert (first.name, len(first.policy.spec.pools)) == ("production", 1)
    assert (second.name, second.lost) == ("default", {"pool": "production"})
    assert not second.policy.spec.pools


def test_a_policy_that_is_not_enabled_has_no_pool_of_one_that_is() -> None:
    """Its labels, its dry run and its silence on notices would else be those of the other's nodes."""
    acts = a_policy().policy
    old = replace(acts, meta=ObjectMeta("a-former-one"), spec=replace(acts.spec, enabled=False))

    found = {one.name: one for one in effective_policies([old, acts])}

    assert found["a-former-one"].policy.spec.pools == ()
    assert found["a-former-one"].lost == {"pool": "policy"}
    assert found["policy"].lost == {}
    assert len(effective_policies([old])[0].policy.spec.pools) == 1


def test_the_table_has_what_the_pools_name_at_the_price_that_is_told() -> None:
    offered = [
        PricedOffering(SMALL, zone, tier, 10**9)
        for zone in ("zone-a", "zone-b")
        for tier in (CapacityType.SPOT, CapacityType.ON_DEMAND)
    ]
    market = Market(CloudView(CloudProvider.SIMULATED), offered)
    pools = (
        NodePool("named", instance_types=(SMALL,), zones=("zone-b",), capacity_type=CapacityType.SPOT),
        NodePool("by-model", gpu_type="nvidia-a10g"),
        NodePool("typo", instance_types=("g5.hugelarge",)),
        NodePool("half", instance_types=("g5.hugelarge", SMALL)),
    )
    spec = replace(a_policy().policy.spec, pools=pools)

    table = offering_table(spec, market, CATALOG, book_of([], NOW), NOW)

    named = [str(one.key) for one in table.offerings if one.pool == "named"]
    assert named == ["g5.xlarge/zone-b/spot"]
    assert len([one for one in table.offerings if one.pool == "by-model"]) == 4
    assert "g5.hugelarge" in table.problems["typo"]
    assert "half" not in table.problems
    assert {name for name, _ in table.rejected} == {"typo: g5.hugelarge", "half: g5.hugelarge"}


def test_f10_a_node_is_replaced_only_if_the_saving_outweighs_the_move() -> None:
    """The new one is bought first, so nothing is drained for a machine that can't be had (F6)."""
    dear = a_claim("dear", price_nano_usd_per_hour=6 * 10**9)
    mover = Resident(a_pod("small", milli=500), "team/small", uses_gpu=True)
    cheap = Table((an_offering(SMALL, 1.0, tier=CapacityType.SPOT),))
    near = Table((an_offering(SMALL, 5.5, tier=CapacityType.SPOT),))
    load = idle(dear, residents=[mover], mean_use=0.9)

    found = decide_consolidation(a_situation(dear, table=cheap), [load])
    assert found is not None
    assert found.claim is dear
    assert found.node.offering.key.instance_type == SMALL
    assert decide_consolidation(a_situation(dear, table=near), [load]) is None
    assert decide_consolidation(a_situation(dear, table=Table()), [load]) is None
    young = replace(dear, status=replace(dear.status, gpu_ready=NOW - timedelta(minutes=59)))
    assert decide_consolidation(a_situation(young, table=cheap), [replace(load, claim=young)]) is None
    free = replace(dear, status=replace(dear.status, price_nano_usd_per_hour=0))
    paid = Table((an_offering(SMALL, 0.0, tier=CapacityType.SPOT),))
    assert decide_consolidation(a_situation(free, table=paid), [replace(load, claim=free)]) is None
    coming = a_claim("coming", ready=None)
    assert decide_consolidation(a_situation(dear, coming, table=cheap), [load]) is None


def test_f10_a_node_is_replaced_by_no_smaller_one_that_would_be_too_busy() -> None:
    large = a_claim("large", price_nano_usd_per_hour=6 * 10**9)
    large = replace(large, spec=replace(large.spec, gpu_count=4))
    mover = Resident(a_pod("small", milli=500), "team/small", uses_gpu=True)
    load = idle(large, residents=[mover], mean_use=0.3)
    cheap = Table((an_offering(SMALL, 1.0, tier=CapacityType.SPOT),))
    other = [a_node("other", SMALL)]

    def seen(busy_gpus: float) -> Situation:
        return a_situation(large, table=cheap, busy_gpus=busy_gpus, told_gpus=4)

    assert decide_consolidation(seen(0.8), [load]) is not None
    assert decide_consolidation(seen(1.2), [load]) is None
    assert may_leave(load, replace(seen(0.8), nodes=other, told_gpus=5))
    assert not may_leave(load, replace(seen(1.2), nodes=other, told_gpus=5))
