"""The plan of the embedded mesh, its ports and its directory."""

import os
import random
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import ConflictError, InvalidRequestError
from gpuloom.kube.access import KubeAccess, access_from_kubeconfig
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import CONFIGMAPS
from gpuloom.model.node import NodeMode
from gpuloom.roster import GRPC, ROSTER, Kind, Roster, Service, grpc_port
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubelet.podresources import MAX_SOCKET_PATH_BYTES
from gpuloom.sim.machines.cluster import plan_machines
from gpuloom.sim.machines.machine import SOCKET_FILE
from gpuloom.sim.mesh.files import write_files
from gpuloom.sim.mesh.plan import (
    FLEET_SIZE,
    MeshOptions,
    MeshPlan,
    MeshPlanner,
    agent_groups,
    assign_ports,
    central,
    clean_environment,
    count_ports,
)
from gpuloom.sim.mesh.run_directory import MARKER_FILE, RunDirectory, open_run_directory
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.supervisor import Supervisor


def a_plan(directory: Path, nodes: int = 3, roster: Roster = ROSTER) -> MeshPlan:
    machines = plan_machines(nodes, seed=1)
    names = [machine.node for machine in machines]
    ports = assign_ports(names, range(20_000, 20_000 + count_ports(names, roster)), roster)
    run_directory = RunDirectory(directory, -1, directory / "machines")
    options = MeshOptions(nodes=nodes, seed=1)
    environment = {"PATH": "/bin"}
    return MeshPlanner(options, run_directory, machines, ports, environment, FakeClock(), roster).plan()


def names_of(plan: MeshPlan) -> list[list[str]]:
    return [[spec.name for spec in stage] for stage in plan.stages]


def test_everything_starts_after_what_it_needs(tmp_path: Path) -> None:
    stages = names_of(a_plan(tmp_path))

    assert stages[0] == ["kubernetes-api", "cloud"]
    assert stages[1][0] == "kubelets"
    assert [name.partition("-")[0] for name in stages[1][1:]] == ["agent"] * 3
    services = [row.short for row in central(ROSTER)]
    assert stages[2:] == [services, ["scheduler"], ["workload", "inference"]]


def test_a_large_cluster_has_its_agents_in_few_processes(tmp_path: Path) -> None:
    agents = names_of(a_plan(tmp_path, nodes=100))[1][1:]

    assert agents[2:] == ["agents-1", "agents-2", "agents-3", "agents-4"]


@pytest.mark.parametrize("nodes", [2, 12, 100])
def test_an_agent_of_each_mode_is_a_process_of_its_own(tmp_path: Path, nodes: int) -> None:
    plan = a_plan(tmp_path, nodes)

    alone = [name.removeprefix("agent-") for name in names_of(plan)[1] if name.startswith("agent-")]

    assert {plan.modes[node] for node in alone} == {NodeMode.NVIDIA, NodeMode.GPULOOM}
    assert len(names_of(plan)[1]) <= 4 + nodes // FLEET_SIZE


def test_a_row_more_in_the_roster_is_a_process_more_that_knows_whom_it_calls(tmp_path: Path) -> None:
    planner = Service(
        "planner", Kind.LEADER, "planner", (grpc_port(50099, "cli"),), embedded={"X": "{namespace}"}
    )
    extender = ROSTER["scheduler_extender"]
    grpc, https = extender.own_ports
    called = replace(extender, own_ports=(replace(grpc, callers=grpc.callers | {"planner"}), https))
    rows = tuple(called if row is extender else row for row in ROSTER)

    plan = a_plan(tmp_path, roster=replace(ROSTER, services=(*rows, planner)))

    spec = plan.stages[2][-1]
    assert (spec.name, spec.argv[-1]) == ("planner", "services.planner")
    assert spec.environment["GPULOOM_EXTENDER_ADDRESS"] == plan.address("scheduler_extender")
    assert spec.environment["GPULOOM_GRPC_PORT"] == plan.address("planner").split(":")[1]
    assert spec.environment["GPULOOM_TLS_CERT_FILE"].endswith("/planner.crt")
    assert spec.environment["X"] == "default"


@given(st.integers(1, 500))
def test_every_node_has_its_agent_in_exactly_one_process(count: int) -> None:
    nodes = [f"node-{index}" for index in range(count)]

    groups = agent_groups(nodes)

    assert [node for group in groups for node in group] == nodes
    assert all(1 <= len(group) <= FLEET_SIZE for group in groups)


def test_every_service_has_its_own_ports_and_its_own_certificate(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)

    services = [spec for stage in plan.stages for spec in stage if "GPULOOM_HTTP_PORT" in spec.environment]

    keys = ("GPULOOM_HTTP_PORT", "GPULOOM_GRPC_PORT", "GPULOOM_AGENT_EXPORTER_PORT")
    ports = [spec.environment[key] for spec in services for key in keys if key in spec.environment]
    without_grpc = sum(not row.has_port(GRPC) for row in central(ROSTER))
    assert len(set(ports)) == len(ports) == 2 * len(services) + 3 - without_grpc
    certificates = {spec.name: Path(spec.environment["GPULOOM_TLS_CERT_FILE"]).name for spec in services}
    for row in central(ROSTER):
        assert certificates.pop(row.short) == f"{row.name}.crt"
    assert set(certificates.values()) == {"node_agent.crt"}


@pytest.mark.parametrize("nodes", [3, 100])
def test_every_agent_process_exports_gpu_metrics_where_the_plan_says(tmp_path: Path, nodes: int) -> None:
    plan = a_plan(tmp_path, nodes)

    agents = [spec.environment for spec in plan.stages[1][1:]]

    assert {agent["GPULOOM_AGENT_EXPORTER"] for agent in agents} == {"on"}
    assert plan.exporter_urls == tuple(
        f"http://{HOST}:{agent['GPULOOM_AGENT_EXPORTER_PORT']}/metrics" for agent in agents
    )


async def test_what_services_keep_has_a_namespace_in_a_fresh_cluster(tmp_path: Path) -> None:
    environments = [spec.environment for spec in a_plan(tmp_path).stages[2]]
    namespaces = {
        value for each in environments for name, value in each.items() if name.endswith("_LEASE_NAMESPACE")
    }
    assert len(environments) == len(central(ROSTER))
    async with SimKubeApi() as api, KubeClient(KubeAccess(api.url), FakeClock()) as client:
        for namespace in namespaces:
            learned = {"metadata": {"name": "kept", "namespace": namespace}, "data": {}}

            assert await client.create(CONFIGMAPS, learned)


def test_the_users_own_settings_reach_no_process() -> None:
    environment = clean_environment(
        {"PATH": "/bin", "HOME": "/home/me", "KUBECONFIG": "/prod", "GPULOOM_TLS_INSECURE": "true"}
    )

    assert environment["PATH"] == "/bin"
    assert not {"KUBECONFIG", "GPULOOM_TLS_INSECURE"} & environment.keys()


def test_the_files_of_a_plan_lead_to_its_api_and_its_machines(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)

    write_files(plan, FakeClock())

    access = access_from_kubeconfig([plan.directory.kubeconfig], None, FakeClock())
    assert access.server == plan.api_url
    machines = {path.name for path in plan.directory.machines.iterdir()}
    assert machines == plan.modes.keys()


def test_free_ports_differ_and_skip_those_in_use() -> None:
    chance = random.Random(1)
    (first,) = free_ports(1, random.Random(1))
    with socket.socket() as taken:
        taken.bind((HOST, first))
        taken.listen()

        ports = free_ports(20, chance)

    assert len(set(ports)) == 20
    assert first not in ports


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")

    with pytest.raises(InvalidRequestError, match="is not empty"), open_run_directory(tmp_path, ()):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")

    with (
        pytest.raises(InvalidRequestError, match="not a directory"),
        open_run_directory(tmp_path / "run", ()),
    ):
        pass


def test_a_second_run_in_the_same_directory_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with open_run_directory(tmp_path / "run", ()) as first:
        (first.path / "logs").mkdir()
        with pytest.raises(ConflictError, match="another `gpuloom run`"), open_run_directory(first.path, ()):
            pass
        assert first.logs.is_dir()

    with open_run_directory(tmp_path / "run", ()) as second:
        assert second.path == first.path


def test_a_fresh_start_clears_what_a_run_made_and_nothing_else(tmp_path: Path) -> None:
    with open_run_directory(tmp_path, ()) as first:
        (first.machines / "n1").mkdir()
        first.api_state.write_text("old")
        (tmp_path / "notes.txt").write_text("mine")

    with open_run_directory(tmp_path, ()) as second:
        assert list(second.machines.iterdir()) == []
        assert not second.api_state.exists()
        assert (tmp_path / "notes.txt").read_text() == "mine"


def test_machines_of_a_deep_directory_have_a_short_place_that_the_next_run_clears(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)

    with open_run_directory(deep, ["node-1"]) as first:
        (first.machines / "node-1").mkdir()

    assert first.machines_are_elsewhere
    assert len(str(first.machines / "node-1" / SOCKET_FILE)) <= MAX_SOCKET_PATH_BYTES
    assert (deep / "machines").resolve() == first.machines.resolve()
    with open_run_directory(deep, ["node-1"]) as second:
        assert not first.machines.exists()
        assert second.machines.is_dir()
        shutil.rmtree(second.machines)


def test_a_directory_is_refused_when_even_the_temporary_one_is_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    with (
        pytest.raises(InvalidRequestError, match="name a shorter --dir"),
        open_run_directory(deep / "run", ["node-1"]),
    ):
        pass

    assert [path.name for path in deep.iterdir()] == ["run"]


def test_a_link_to_a_directory_that_is_not_ours_is_only_unlinked(tmp_path: Path) -> None:
    theirs = tmp_path / "gpuloom-of-somebody"
    theirs.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / MARKER_FILE).touch()
    (run / "machines").symlink_to(theirs)

    with open_run_directory(run, ()) as opened:
        assert opened.machines.is_dir()
        assert not opened.machines.is_symlink()

    assert theirs.is_dir()


async def test_the_guard_holds_the_lock_too_so_that_nobody_starts_before_it_is_done(tmp_path: Path) -> None:
    with open_run_directory(tmp_path / "run", ()) as directory:
        async with Supervisor(FakeClock(), keep_open=(directory.lock_descriptor,)):
            holders = processes_with(os.fstat(directory.lock_descriptor))

    assert len(holders - {os.getpid()}) == 1


def processes_with(file: os.stat_result) -> set[int]:
    """The processes that have the file open."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.path.samestat(entry.stat(), file):
                found.add(int(entry.parts[2]))
        except OSError:
            continue
    return found
