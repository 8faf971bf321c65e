"""What the services say, as the page shows it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.clients.planning import PlanClient
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.autoscaling import AutoscalerStanding, PolicyStanding
from gpuloom.model.cost import CostAmounts, CostAnswer, CostLine
from gpuloom.model.gpu import DeviceRef, GpuUsage
from gpuloom.model.ledger import Claim as LedgerClaim
from gpuloom.model.ledger import Decision, EntryState, NodeLedger, Verdict
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Holder, HolderSource
from gpuloom.model.planning import GangReport, ReservationReport
from gpuloom.model.snapshot import ClosedGpu, NodeFacts, NodePlace, PodAllocation
from gpuloom.model.topology import PcieLevel, Topology
from gpuloom.runtime.clock import SystemClock
from services.console.aggregator import Aggregator
from services.console.core.money import MOST_GROUPS, REST, series_items
from services.console.core.nodes import node_item, topology_item, topology_key, usage_item
from services.console.core.placing import WaitingPods
from services.console.core.scaling import ScalingHistory
from services.console.core.sight import Sight
from services.console.metrics import ConsoleMetrics
from services.console.sections.ledger import ledger_item
from services.console.sections.planning import planning_source
from tests.unit.discovery.builders import a_gpu, a_ref, a_state, two_gpus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GPU_A = DeviceRef("GPU-a")


def a_decision(name: str, verdict: Verdict, after_s: float = 0.0) -> Decision:
    return Decision(NOW + timedelta(seconds=after_s), a_ref(name), verdict, reason="no room")


def test_a_gpu_shows_who_has_how_much_of_it_and_a_prediction_gives_way_to_what_is_seen() -> None:
    half = AllocatedDevice(GPU_A, 500, 1000)
    whole = AllocatedDevice(DeviceRef("GPU-b"), 1000, 15360)
    facts = NodeFacts(
        two_gpus(Holder(a_ref("plugged"), "main", (GPU_A,), HolderSource.KUBELET)),
        closed_gpus=(ClosedGpu("GPU-b", "two owners"),),
        allocations=(
            PodAllocation(a_ref("shared"), "main", (half,)),
            PodAllocation(a_ref("plugged"), "main", (whole,), advisory=True),
        ),
        place=NodePlace(labels=(("karpenter.sh/nodepool", "gpu"),)),
    )

    item = node_item(facts)

    first, second = item["gpus"]
    assert [(pod["pod"], pod["milli"]) for pod in first["pods"]] == [("shared", 500), ("plugged", 1000)]
    assert (first["allocated"], second["allocated"], second["closed"]) == (1000, 0, "two owners")
    assert item["pool"] == "gpu"


def test_a_slice_that_is_only_seen_counts_as_its_part() -> None:
    place = MigPlacement(0, "1g.5gb")
    gpu = a_gpu(mig_enabled=True, mig_instances=(MigInstance(place, 1, 5120),))
    holder = Holder(a_ref("a"), "main", (DeviceRef("GPU-a", place),), HolderSource.RUNTIME)

    (shown,) = node_item(NodeFacts(a_state(gpus=(gpu,), holders=(holder,))))["gpus"]

    assert shown["allocated"] == 125
    assert shown["pods"][0]["slice"] == {"start": 0, "profile": "1g.5gb"}


def test_what_a_driver_does_not_say_is_null_and_never_zero() -> None:
    told = GpuUsage("GPU-a", utilization_ratio=0.456, memory_used_mib=1001)

    assert usage_item(NodeFacts(a_state(usage=()))) == [[None] * 4]
    assert usage_item(NodeFacts(a_state(usage=(told,)))) == [[46, 992, None, None]]


def test_nodes_that_are_wired_alike_share_one_topology() -> None:
    topology = Topology(2, (PcieLevel.PIX,), (4,))

    assert topology_key(topology) == topology_key(replace(topology))
    assert topology_key(topology) != topology_key(replace(topology, nvlinks=(2,)))
    assert topology_item(topology)["pairs"] == [[0, 1, 4, "PIX"]]


class PlansOfTwoTeams(PlanClient):
    """Without a channel: what an extender would say."""

    def __init__(self) -> None:
        self.teams = ["mine", "theirs"]

    async def gangs(self) -> list[GangReport]:
        return [GangReport(f"{team}/train", "waiting", 4, 4, 0, 0, 0) for team in self.teams]

    async def reservations(self) -> list[ReservationReport]:
        return [ReservationReport(team, "demo", 8, mig_profile="1g.5gb") for team in self.teams]


async def test_gangs_and_reservations_are_seen_in_their_namespace_alone() -> None:
    plans = PlansOfTwoTeams()
    source = planning_source(plans)
    aggregator = Aggregator((source,), SystemClock(), ConsoleMetrics(CollectorRegistry()))
    mask = aggregator.mask(Sight(frozenset({"mine"})))
    await aggregator.ask(source)

    shown = aggregator.state.full(mask)
    version = aggregator.state.version
    plans.teams = []
    await aggregator.ask(source)
    gone = aggregator.state.since(version, mask)

    assert [one["gang"] for one in shown["gangs"].values()] == ["train"]
    assert [one["each"] for one in shown["reservations"].values()] == ["8 1g.5gb"]
    assert gone is not None
    assert gone.gone == {"gangs": ["mine/train"], "reservations": ["mine/demo"]}


def test_a_pod_waits_from_its_first_refusal_until_it_is_bound() -> None:
    waiting = WaitingPods()
    waiting.note([a_decision("a", Verdict.REFUSED, 1), a_decision("b", Verdict.BIND_FAILED, 2)])
    waiting.note([a_decision("a", Verdict.REFUSED, 9), a_decision("b", Verdict.BOUND, 9)])

    assert {uid: since for uid, (_, since, _) in waiting.since.items()} == {
        a_ref("a").uid: NOW + timedelta(seconds=1)
    }


def test_of_more_pods_than_can_be_remembered_the_oldest_are_let_go() -> None:
    waiting = WaitingPods(most=2)
    waiting.note([a_decision(name, Verdict.REFUSED) for name in "abc"])

    assert list(waiting.since) == [a_ref("b").uid, a_ref("c").uid]


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 10**12)), max_size=600))
def test_no_cost_is_lost_however_many_groups_there_are(lines: list[tuple[int, int]]) -> None:
    answer = CostAnswer(
        tuple(CostLine(NOW, (f"g{group}",), CostAmounts(cost=cost * 1000)) for group, cost in lines),
        CostAmounts(),
        NOW,
        NOW,
        True,
    )

    items = series_items(answer, "namespace", "hour")

    assert sum(point[1] for item in items.values() for point in item["points"]) == sum(
        cost for _, cost in lines
    )
    assert len(items) <= MOST_GROUPS + 1
    assert items.get(f"namespace/hour/{REST}", {}).get("namespace", "") == ""


def test_a_policy_that_is_gone_takes_its_history_along() -> None:
    history = ScalingHistory(points=2)
    policy = PolicyStanding("p", "aws", True, False, 1, 2, 9, 0, 0.5, "", 0.0, 0.0, None, None, ())
    for _ in range(3):
        history.note(NOW, AutoscalerStanding((policy,), (), 0.0))
    assert [len(points) for points in history.items().values()] == [2]

    history.note(NOW, AutoscalerStanding((), (), 0.0))

    assert history.items() == {}


def test_a_node_s_ledger_is_shown_where_it_says_more_than_the_node() -> None:
    settled = LedgerClaim(a_ref("a"), EntryState.OBSERVED, ())
    moving = LedgerClaim(a_ref("b"), EntryState.IN_FLIGHT, None)

    assert ledger_item(NodeLedger("n", "u", (settled,))) is None
    assert [one["pod"] for one in ledger_item(NodeLedger("n", "u", (settled, moving)))["claims"]] == ["b"]
