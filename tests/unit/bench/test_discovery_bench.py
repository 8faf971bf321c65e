from collections import Counter
from pathlib import Path

import pytest

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.storage.journal import Journal
from gpuloom.sim.kubeapi.verbs.store import Store
from tests.bench.agent.observation import Memory
from tests.bench.discovery_scale.figures import OwnFigures, parse_own_figures
from tests.bench.discovery_scale.ground import lay_ground
from tests.bench.discovery_scale.measurement import Measured, Rest
from tests.bench.discovery_scale.population import Size, machine_specs, shares
from tests.bench.discovery_scale.reader import read_sightings
from tests.bench.discovery_scale.report import render, summarize, to_json

METRICS = """
gpuloom_discovery_agent_messages_total 900.0
gpuloom_discovery_deltas_total 40.0
gpuloom_discovery_sent_bytes_total 1024.0
gpuloom_discovery_node_changes_total 50.0
gpuloom_discovery_nodes 10.0
gpuloom_discovery_untrusted_nodes 2.0
gpuloom_discovery_closed_gpus 1.0
gpuloom_discovery_agents_heard 9.0
gpuloom_discovery_readers 3.0
gpuloom_discovery_distrust{cause="agent-silent"} 2.0
"""


def own(nodes: int, messages_in: int = 2000) -> OwnFigures:
    return OwnFigures(messages_in, 10, 4096, 10, nodes, 0, nodes, 1)


def a_measurement(nodes: int = 10, *, cpu_s: float = 1.0, late_s: float = 0.1) -> Measured:
    return Measured(
        size=Size(nodes, 10 * nodes, 1, 1),
        synced_after_s=2.0,
        rest=Rest(20.0, cpu_s, own(nodes), Memory(90.0, 100.0), 0.002),
        told_s={"change-0": 5.0, "change-1": 6.0},
        seen_s={"reader-1": {"change-0": 5.0 + late_s, "change-1": 6.0}},
        end=own(nodes),
    )


def test_a_card_is_dealt_out_whole_or_in_equal_parts_and_never_beyond_its_capacity(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path, Size(nodes=3, pods=31, fleets=1, readers=1), FakeClock())
    machine = ground.machines[0]

    given = [device for hosted in machine.hosted() for device in hosted.devices]

    milli = Counter[str]()
    for device in given:
        milli[device.device.gpu_uuid] += device.milli
    assert len(given) == 11
    assert all(0.99 * MILLI_PER_GPU <= amount <= MILLI_PER_GPU for amount in milli.values())
    assert len(milli) == 8


def test_every_pod_of_the_cluster_is_bound_with_an_allocation_that_is_believed(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path, Size(nodes=2, pods=20, fleets=1, readers=1), FakeClock())
    journal, changes = Journal.open(ground.api_state)
    store = Store(FakeClock(), changes=changes)
    journal.close()

    pods = store.select(PODS.plural)

    node_uids = {node["metadata"]["name"]: node["metadata"]["uid"] for node in store.select(NODES.plural)}
    assert len(pods) == 20
    for pod in pods:
        allocation = decode_allocation(pod["metadata"]["annotations"][ANNOTATION_ALLOCATION])
        assert not believable(allocation, pod["metadata"]["uid"], node_uids[pod["spec"]["nodeName"]])


def test_every_agent_runs_in_exactly_one_fleet(tmp_path: Path) -> None:
    ground = lay_ground(tmp_path, Size(nodes=9, pods=9, fleets=3, readers=1), FakeClock())

    nodes = [node for fleet in ground.fleets for node in fleet.nodes]

    assert sorted(nodes) == [spec.node for spec in machine_specs(9)]


def test_a_smaller_cluster_has_as_many_pods_a_node() -> None:
    size = Size(nodes=1000, pods=10_000, fleets=4, readers=3)

    assert size.shrunk_to(100) == Size(nodes=100, pods=1000, fleets=1, readers=3)
    assert sum(Size(3, 10, 1, 1).pods_on(index) for index in range(3)) == 10
    assert shares((), 0) == []


def test_totals_count_from_the_earlier_look_and_the_rest_is_as_it_stands() -> None:
    now = parse_own_figures(METRICS)

    since = now.since(own(5, messages_in=100))

    assert (since.messages_in, since.deltas_out) == (800, 30)
    assert (since.trusted_nodes, since.agents_heard, since.closed_gpus) == (8, 9, 1)


def test_sightings_are_read_as_they_were_noted(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("change-1 12.5\nchange-2 13.25\n")

    assert read_sightings(tmp_path / "seen") == {"change-1": 12.5, "change-2": 13.25}


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        (a_measurement(cpu_s=3.0), "CPU at rest"),
        (a_measurement(late_s=0.3), "change to reader"),
    ],
)
def test_a_missed_aim_is_a_failure(measured: Measured, missed: str) -> None:
    summary = summarize([measured])

    (failure,) = summary.failures

    assert missed in failure
    assert "MISSED" in render(summary)


def test_growth_is_how_many_times_as_much_the_larger_cluster_takes() -> None:
    summary = summarize([a_measurement(100, cpu_s=1.5), a_measurement(10, cpu_s=0.5)])

    assert summary.growth["nodes"] == 10
    assert summary.growth["cpu_share"] == pytest.approx(3)
    assert not summary.failures
    assert b'"failures": []' in to_json(summary)


def test_a_change_that_a_reader_never_saw_is_a_problem() -> None:
    good = a_measurement()
    measured = Measured(
        good.size, good.synced_after_s, good.rest, {**good.told_s, "change-2": 7.0}, good.seen_s, own(9)
    )

    never_seen, not_trusted = summarize([measured]).problems

    assert "reader-1 never saw 1 of 3 changes" in never_seen
    assert "9 were trusted" in not_trusted
