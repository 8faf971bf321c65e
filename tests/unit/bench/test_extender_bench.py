from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.kube.parse import quantity_value
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.storage.journal import Journal
from gpuloom.sim.kubeapi.verbs.store import Store
from tests.bench.agent.observation import Memory
from tests.bench.audit import check_devices, check_nodes
from tests.bench.extender_scale.caller import (
    TURN,
    Address,
    Script,
    Waits,
    read_script,
    read_waits,
    turns,
    write_script,
)
from tests.bench.extender_scale.ground import lay_ground
from tests.bench.extender_scale.measurement import Measured, Use
from tests.bench.extender_scale.population import Size, plan_arrivals
from tests.bench.extender_scale.report import render, summarize, to_json


def some_waits(decision_s: float, pods: int = 2) -> Waits:
    return Waits([decision_s * 0.75] * pods, [decision_s * 0.25] * pods, [0.002] * pods)


def a_measurement(*, decision_s: float = 0.006, peak_rss_mib: float = 200.0) -> Measured:
    return Measured(
        size=Size(nodes=10, residents=80, pods=2),
        ready_after_s=12.0,
        ready_cpu_s=7.0,
        ready=Memory(180.0, 190.0),
        end=Memory(185.0, peak_rss_mib),
        ours=Use(some_waits(decision_s), cpu_s=0.012),
        do_nothing=Use(some_waits(0.001), cpu_s=0.004),
        load_average=1.0,
        problems=(),
    )


def test_residents_are_bound_with_allocations_that_are_believed_where_gpuloom_gives_out_cards(
    tmp_path: Path,
) -> None:
    ground = lay_ground(tmp_path, Size(nodes=4, residents=32, pods=1), FakeClock())
    journal, changes = Journal.open(ground.api_state(ground.ports.api))
    store = Store(FakeClock(), changes=changes)
    journal.close()

    pods = store.select(PODS.plural)

    node_uids = {node["metadata"]["name"]: node["metadata"]["uid"] for node in store.select(NODES.plural)}
    assert Counter(pod["spec"]["nodeName"] for pod in pods) == dict.fromkeys(node_uids, 8)
    holding = [pod for pod in pods if ANNOTATION_ALLOCATION in pod["metadata"].get("annotations", {})]
    assert len(holding) == 16
    for pod in holding:
        allocation = decode_allocation(pod["metadata"]["annotations"][ANNOTATION_ALLOCATION])
        assert not believable(allocation, pod["metadata"]["uid"], node_uids[pod["spec"]["nodeName"]])


def test_discovery_tells_of_the_same_nodes_and_holders_as_kubernetes(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path, Size(nodes=4, residents=32, pods=1), FakeClock())

    facts = ground.nodes.values()

    held = [holder.pod.uid for one in facts for holder in one.state.holders]
    assert sorted(held) == sorted(resident.uid for resident in ground.residents)
    assert [len(one.allocations) for one in facts] == [8, 0, 8, 0]


def test_residents_are_a_load_that_the_audit_finds_nothing_wrong_with(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path, Size(nodes=4, residents=32, pods=1), FakeClock())

    assert check_nodes(ground.residents, ground.nodes) == []
    assert check_devices(ground.residents, ground.nodes) == []


def test_every_arriving_pod_fits_beside_the_residents() -> None:
    plans = plan_arrivals(300)

    most = max(plan.milli for plan in plans if plan.mode is NodeMode.GPULOOM)
    assert most == 4 * MILLI_PER_GPU
    assert {plan.mode for plan in plans} == {NodeMode.GPULOOM, NodeMode.NVIDIA}


def test_nodes_offer_what_discovery_would_have_written(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path, Size(nodes=2, residents=0, pods=1), FakeClock())
    journal, changes = Journal.open(ground.api_state(ground.ports.api))
    store = Store(FakeClock(), changes=changes)
    journal.close()

    allocatable = [node["status"]["allocatable"] for node in store.select(NODES.plural)]

    assert [quantity_value(one.get(RESOURCE_GPU_MILLI, "0")) for one in allocatable] == [8000, 0]


def test_residents_are_spread_as_even_as_can_be() -> None:
    size = Size(nodes=3, residents=10, pods=1)

    assert [size.residents_on(index) for index in range(3)] == [4, 3, 3]


def test_what_the_caller_is_told_and_what_it_tells_come_through_files(tmp_path: Path) -> None:
    script = Script("certificates", {"ours": Address(1, 2)}, ["n1"], [{"metadata": {"name": "p"}}])
    write_script(tmp_path / "script", script)
    (tmp_path / "waits").write_bytes(orjson.dumps({"ours": {"filter_s": [0.5], "prioritize_s": [0.25]}}))

    waits = read_waits(tmp_path / "waits")

    assert read_script(tmp_path / "script") == script
    assert waits["ours"].decision_s() == [0.75]


def test_every_pod_has_its_turn_once() -> None:
    pods = [{"metadata": {"name": f"pod-{number}"}} for number in range(2 * TURN + 1)]

    dealt = [list(turn) for turn in turns(pods)]

    assert [len(turn) for turn in dealt] == [TURN, TURN, 1]
    assert [pod for turn in dealt for pod in turn] == pods


def test_a_summary_compares_with_an_extender_that_does_nothing() -> None:
    summary = summarize(a_measurement())

    assert summary.decision.p50_ratio == pytest.approx(6)
    assert summary.cpu_ms == pytest.approx(6)
    assert summary.failures == ()
    assert "3.00 times" in render(summary)
    assert orjson.loads(to_json(summary))["decision_ratios"]["p99"] == pytest.approx(6)


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        (a_measurement(decision_s=0.016), "filter and prioritize"),
        (a_measurement(peak_rss_mib=301.0), "peak RSS"),
    ],
)
def test_a_missed_aim_is_a_failure(measured: Measured, missed: str) -> None:
    summary = summarize(measured)

    (failure,) = summary.failures

    assert missed in failure
    assert "MISSED" in render(summary)


def test_a_pod_that_was_not_bound_or_placed_wrongly_is_a_problem() -> None:
    good = a_measurement()
    waits = replace(good.ours.waits, bind_s=[0.002], problems=["pod-1: no node was kept"])

    summary = summarize(replace(good, ours=replace(good.ours, waits=waits), problems=("over capacity",)))

    assert summary.problems == (
        "ours: pod-1: no node was kept",
        "ours: 1 of 2 pods were bound",
        "over capacity",
    )


def test_a_run_in_which_nothing_was_answered_is_told_without_figures() -> None:
    good = a_measurement()

    summary = summarize(replace(good, ours=replace(good.ours, waits=Waits(problems=["503"]))))

    assert summary.decision.p99_ratio is None
    assert "503" in render(summary)
    assert summary.failures
