"""What is bought for waiting pods: enough, no more than allowed, cheap, and never what would not help."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.node import NodeMode
from gpuloom.model.policies import AutoscalingPolicySpec, CapacityType, CloudProvider, NodePool
from services.autoscaler.core.buying.filling import LABEL_REPLICAS, MachineForm, Stencils
from services.autoscaler.core.buying.mix import Mix
from services.autoscaler.core.buying.pending import PendingPod, Worth, due_pods, units_of
from services.autoscaler.core.buying.plan import Effort, Limits, Plan, Problem, make_plan
from services.autoscaler.core.buying.simulation import SimulatedNode
from services.autoscaler.core.buying.tiers import RATE_LIMIT, TierTargets, lowered_share, targets_of
from tests.effort import examples
from tests.unit.autoscaler.builders import NOW, a_node, a_pod, an_offering

SMALL, FOUR, EIGHT = "g5.xlarge", "g5.12xlarge", "p4d.24xlarge"
OFFERINGS = [an_offering(SMALL, 1.0), an_offering(FOUR, 5.67), an_offering(EIGHT, 32.77)]
QUICK = Effort(restarts=2)


def planned(pods: list[PendingPod], *, nodes: list[SimulatedNode] | None = None, **options: object) -> Plan:
    units, left_out = units_of(pods)
    problem = replace(Problem(units, nodes or [], OFFERINGS), **options)  # type: ignore[arg-type]
    plan = make_plan(problem, QUICK)
    return replace(plan, unplaced=(*plan.unplaced, *left_out))


def types(plan: Plan) -> list[str]:
    return sorted(node.offering.key.instance_type for node in plan.nodes)


PODS = st.lists(
    st.tuples(st.sampled_from([100, 300, 500, 700, 1000, 2000, 4000, 8000]), st.integers(1, 3)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=examples(60), deadline=None)
@given(wanted=PODS, most=st.integers(0, 6))
def test_every_pod_is_on_a_machine_that_holds_it_or_told_why_not(
    wanted: list[tuple[int, int]], most: int
) -> None:
    pods = [a_pod(f"p{at}", milli=milli, cpu=str(cpu)) for at, (milli, cpu) in enumerate(wanted)]

    plan = planned(pods, limits=Limits(most))

    placed = [pod.ref.uid for node in plan.nodes for pod in node.pods]
    told = [pod.ref.uid for pod, reason in plan.unplaced if reason]
    assert sorted(placed + told) == sorted(pod.ref.uid for pod in pods)
    assert len(plan.nodes) <= most
    for node in plan.nodes:
        fresh = Stencils(MachineForm()).sample(node.offering)
        assert not any(fresh.take(pod) for pod in node.pods)
    assert plan == planned(pods, limits=Limits(most))


def test_f1_f21_pods_that_fit_on_what_is_there_or_on_its_way_buy_nothing() -> None:
    """F1, F21: a node without its GPUs yet counts with those that it will have."""
    upcoming = Stencils(MachineForm()).node(OFFERINGS[1], "claim-1")

    plan = planned([a_pod(f"p{n}") for n in range(4)], nodes=[upcoming])

    assert not plan.nodes
    assert set(plan.kept.values()) == {"claim-1"}


def test_f4_a_pool_of_no_nodes_is_planned_by_its_machine_type() -> None:
    assert types(planned([a_pod("big", milli=4000)])) == [FOUR]


def test_shares_go_together_and_a_large_machine_is_not_bought_for_a_small_pod() -> None:
    pods = [a_pod(f"p{n}", milli=250, cpu="500m", memory="512Mi") for n in range(4)]

    assert types(planned(pods)) == [SMALL]


def test_f12_a_pool_whose_gpus_are_shared_by_time_offers_its_replicas() -> None:
    shared = replace(OFFERINGS[0], labels={LABEL_REPLICAS: "4"})

    node = Stencils(MachineForm(NodeMode.NVIDIA)).sample(shared)

    assert node.node.allocatable["nvidia.com/gpu"] == 4
    assert len(node.view.gpus) == 4


def test_a_gang_is_bought_for_whole_or_not_at_all() -> None:
    gang = [a_pod(f"g{n}", milli=4000, gang=("train", 3)) for n in range(3)]

    assert len(planned(gang).nodes) >= 1
    assert not planned(gang).unplaced
    too_few = planned(gang, limits=Limits(1), offerings=[an_offering(FOUR, 5.67)])
    assert not too_few.nodes
    assert {reason for _, reason in too_few.unplaced} == {"its gang team/train fits only in part"}
    missing = planned(gang[:2])
    assert not missing.nodes
    assert "1 pods of its gang" in missing.unplaced[0][1]


def test_a_gang_of_more_machines_than_a_plan_has_otherwise_is_bought_for() -> None:
    gang = [a_pod(f"g{n}", gang=("train", 250)) for n in range(250)]

    plan = planned(gang, offerings=[an_offering(SMALL, 1.0)], limits=Limits(300))
    refused = planned(gang, offerings=[an_offering(SMALL, 1.0)], limits=Limits(249))

    assert (len(plan.nodes), plan.unplaced) == (250, ())
    assert (refused.nodes, len(refused.unplaced)) == ((), 250)


def test_a_pool_of_higher_priority_is_used_first_though_it_costs_more() -> None:
    dear = an_offering(SMALL, 9.0, pool="first", priority=10)
    cheap = an_offering(SMALL, 1.0, pool="second", priority=5)

    plan = planned([a_pod("a"), a_pod("b")], offerings=[dear, cheap], limits=Limits(9, {"first": 1}))

    assert sorted(node.offering.pool for node in plan.nodes) == ["first", "second"]


def test_zones_selectors_taints_and_spread_are_kept() -> None:
    zones = [an_offering(SMALL, 1.0 + at, zone=f"zone-{zone}") for at, zone in enumerate("abc")]
    picky = a_pod("picky", spec={"nodeSelector": {"topology.kubernetes.io/zone": "zone-c"}})

    (node,) = planned([picky], offerings=zones).nodes
    assert node.offering.key.zone == "zone-c"

    rule = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "minDomains": 3,
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    spread = [
        a_pod(f"s{n}", spec={"topologySpreadConstraints": [rule]}, metadata={"labels": {"app": "x"}})
        for n in range(3)
    ]
    plan = planned(spread, offerings=zones)
    assert sorted(node.offering.key.zone for node in plan.nodes) == ["zone-a", "zone-b", "zone-c"]

    impossible = planned([a_pod("x", spec={"nodeSelector": {"disk": "ssd"}})])
    assert not impossible.nodes
    assert "affinity" in impossible.unplaced[0][1]


def test_a_mig_slice_is_planned_on_a_gpu_that_can_be_cut() -> None:
    slices = [
        a_pod(f"m{n}", milli=125, metadata={"annotations": {"gpuloom.dev/mig-profile": "1g.5gb"}})
        for n in range(7)
    ]

    assert types(planned(slices)) == [EIGHT]


TIERS = TierTargets({CapacityType.SPOT: 0.6, CapacityType.ON_DEMAND: 0.35, CapacityType.RESERVED: 0.05})
BOTH = [an_offering(SMALL, 0.4, tier=CapacityType.SPOT), an_offering(SMALL, 1.0)]


def test_tiers_come_to_their_shares_counted_in_nodes() -> None:
    plan = planned([a_pod(f"p{n}") for n in range(10)], offerings=BOTH, mix=Mix(TIERS))

    tiers = [node.offering.key.capacity_type for node in plan.nodes]
    assert tiers.count(CapacityType.SPOT) == 6
    assert tiers.count(CapacityType.ON_DEMAND) == 4


def test_f7_f8_critical_pods_prefer_on_demand_and_every_tier_falls_back() -> None:
    critical = a_pod("training", worth=Worth.CRITICAL)

    (node,) = planned([critical], offerings=BOTH, mix=Mix(TIERS)).nodes
    assert node.offering.key.capacity_type is CapacityType.ON_DEMAND
    (fallback,) = planned([critical], offerings=BOTH[:1], mix=Mix(TIERS)).nodes
    assert fallback.offering.key.capacity_type is CapacityType.SPOT
    floor = replace(TIERS, on_demand_floor=2)
    assert floor.ranked({CapacityType.SPOT: 0, CapacityType.ON_DEMAND: 1})[0] is CapacityType.ON_DEMAND


@given(share=st.floats(0, 1), rate=st.floats(0, 3))
def test_the_spot_share_falls_with_interruptions_and_comes_back(share: float, rate: float) -> None:
    lowered = lowered_share(share, rate)

    assert 0 <= lowered <= share
    assert rate > RATE_LIMIT or lowered == share
    spec = AutoscalingPolicySpec(CloudProvider.SIMULATED, spot_share=share)
    assert abs(sum(targets_of(spec, NodePool("p"), rate).shares.values()) - 1) < 1e-9


def test_urgent_pods_wait_half_a_minute_and_bring_their_gang_along() -> None:
    urgent = a_pod("urgent", spec={"priority": 1_000_000})
    calm = a_pod("calm")
    gang = [a_pod("g0", gang=("g", 2)), replace(a_pod("g1", gang=("g", 2)), since=NOW + timedelta(hours=1))]

    def due(after_s: float) -> set[str]:
        found = due_pods([urgent, calm, *gang], 120, NOW + timedelta(seconds=after_s))
        return {pod.ref.name for pod in found}

    assert due(29) == set()
    assert due(30) == {"urgent"}
    assert due(120) == {"urgent", "calm", "g0", "g1"}


def test_nodes_that_are_full_leave_the_pod_to_be_bought_for() -> None:
    node = a_node("there", SMALL)
    assert not node.take(a_pod("first"))

    plan = planned([a_pod("second")], nodes=[node])

    assert types(plan) == [SMALL]
