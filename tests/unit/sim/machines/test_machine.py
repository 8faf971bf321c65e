from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.catalog import load_catalog
from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import NodeMode
from gpuloom.sim.machines.cluster import create_machines, plan_machines, with_mig_slices
from gpuloom.sim.machines.hardware import assemble
from gpuloom.sim.machines.load import Faults, GpuFault, LoadProfile, RunningContainer, readings
from gpuloom.sim.machines.machine import Machine, find_machines
from tests.unit.sim.builders import a_machine, a_ref, a_spec, hardware, hosted, share, whole

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_machine_is_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    made = Machine.create(tmp_path / "n1", a_spec(mig=True))

    opened = Machine.open(tmp_path / "n1")

    assert opened.hardware == made.hardware


def test_gpu_uuids_follow_from_seed_and_node(tmp_path: Path) -> None:
    first = Machine.create(tmp_path / "a", a_spec("a"))
    again = Machine.create(tmp_path / "b", a_spec("a"))
    other = Machine.create(tmp_path / "c", a_spec("c"))

    assert [gpu.uuid for gpu in first.hardware.gpus] == [gpu.uuid for gpu in again.hardware.gpus]
    assert not {gpu.uuid for gpu in first.hardware.gpus} & {gpu.uuid for gpu in other.hardware.gpus}


def test_creating_a_machine_again_leaves_what_runs_on_it(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    machine.write_hosted([hosted("p1", whole(machine.hardware.gpus[0].uuid))])

    again = a_machine(tmp_path)

    assert [pod.pod.name for pod in again.hosted()] == ["p1"]


def test_another_process_sees_containers_and_faults_at_once(tmp_path: Path) -> None:
    kubelet_side = a_machine(tmp_path)
    agent_side = Machine.open(tmp_path / "n1")
    uuid = kubelet_side.hardware.gpus[2].uuid
    before = agent_side.read(NOW)

    kubelet_side.write_hosted([hosted("p1", whole(uuid), load=0.8)])
    kubelet_side.write_faults(Faults({uuid: GpuFault(GpuHealth.UNHEALTHY, "XID 48")}))
    after = agent_side.read(NOW)

    assert not before.processes
    assert [process.device.gpu_uuid for process in after.processes] == [uuid]
    assert (after.gpus[2].health, after.gpus[2].health_reason) == (GpuHealth.UNHEALTHY, "XID 48")


def test_a_pod_that_exited_holds_nothing(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)

    machine.write_hosted([hosted("p1", whole(machine.hardware.gpus[0].uuid), exited=True)])

    assert machine.containers() == ()


def test_a_fault_may_name_a_gpu_by_index(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    (machine.directory / "faults.json").write_text('{"gpus": {"3": {"health": "lost", "reason": "XID 79"}}}')

    health = [gpu.health for gpu in machine.read(NOW).gpus]

    assert [index for index, state in enumerate(health) if state is GpuHealth.LOST] == [3]


@pytest.mark.parametrize("text", ["{", '{"gpus": {"0": {"health": "fine"}}}', '{"gpus": {"0": {}}}', "[]"])
def test_a_malformed_faults_file_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    machine = a_machine(tmp_path)
    (machine.directory / "faults.json").write_text(text)

    with pytest.raises(InvalidRequestError, match=r"faults\.json is malformed"):
        machine.faults()


def test_a_directory_without_machines_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no machines in"):
        find_machines(tmp_path)


def test_a_machine_that_the_catalogue_cannot_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        Machine.create(tmp_path, a_spec().__class__("n", NodeMode.NVIDIA, "H900", 8, "hgx-a100", 8, 64))
    with pytest.raises(InvalidRequestError, match="is for 8 GPUs, not 4"):
        Machine.create(tmp_path, a_spec().__class__("n", NodeMode.NVIDIA, "T4", 4, "hgx-a100", 8, 64))


def test_a_mig_gpu_gives_no_utilisation_but_memory_and_power() -> None:
    machine = hardware(mig=True)
    device = machine.plugin_devices()["nvidia.com/mig-3g.20gb"][0]
    busy = RunningContainer(a_ref(), "main", (device,), LoadProfile(1.0, 0.5, 1))

    idle_usage = readings(machine, (), Faults(), 0.0).usage
    usage = readings(machine, (busy,), Faults(), 0.0).usage

    assert usage[0].utilization_ratio is None
    assert usage[1].utilization_ratio == 0.0
    assert (usage[0].memory_used_mib or 0) > 0
    assert (usage[0].power_w or 0) > (idle_usage[0].power_w or 0)


def test_a_lost_gpu_gives_no_usage_and_no_processes() -> None:
    machine = hardware()
    lost = machine.gpus[1].uuid
    on_lost = RunningContainer(a_ref(), "main", (whole(lost),), LoadProfile(1.0, 0.5, 1))

    seen = readings(machine, (on_lost,), Faults({lost: GpuFault(GpuHealth.LOST, "XID 79")}), 0.0)

    assert lost not in {usage.gpu_uuid for usage in seen.usage}
    assert seen.processes == ()
    assert seen.gpus[1].health is GpuHealth.LOST


@given(
    level=st.floats(0, 1), milli=st.integers(1, 1000), elapsed_s=st.floats(0, 1e6), seed=st.integers(0, 99)
)
def test_load_stays_within_the_card_and_repeats(
    level: float, milli: int, elapsed_s: float, seed: int
) -> None:
    machine = hardware()
    uuid = machine.gpus[0].uuid
    containers = [
        RunningContainer(a_ref(name), "main", (share(uuid, milli, 20000),), LoadProfile(level, 1.0, seed))
        for name in ("a", "b", "c")
    ]

    usage = readings(machine, containers, Faults(), elapsed_s).usage[0]

    assert usage == readings(machine, containers, Faults(), elapsed_s).usage[0]
    assert usage.utilization_ratio is not None
    assert 0 <= usage.utilization_ratio <= 1
    assert 0 <= (usage.memory_used_mib or 0) <= machine.gpus[0].memory_mib
    assert machine.power_limit_w * 0.1 < (usage.power_w or 0) <= machine.power_limit_w


@given(count=st.integers(2, 60), seed=st.integers(0, 1000))
def test_a_planned_fleet_is_mixed_named_once_and_repeatable(count: int, seed: int) -> None:
    plan = plan_machines(count, seed)

    nvidia = sum(spec.mode is NodeMode.NVIDIA for spec in plan)
    assert plan == plan_machines(count, seed)
    assert abs(2 * nvidia - count) <= 1
    assert len({spec.node for spec in plan}) == count
    assert len({spec.gpu_model for spec in plan}) >= min(count, 5)


@given(count=st.integers(1, 40), seed=st.integers(0, 1000))
def test_a_run_has_mig_slices_beside_whole_gpus_on_nodes_of_nvidias_plugin(count: int, seed: int) -> None:
    plan = plan_machines(count, seed)

    cut = with_mig_slices(plan)

    built = [assemble(new, load_catalog()) for old, new in zip(plan, cut, strict=True) if old != new]
    assert len(cut) == count
    assert built or count < 12
    for machine in built:
        resources = machine.plugin_devices()
        assert machine.spec.mode is NodeMode.NVIDIA
        assert len(resources["nvidia.com/gpu"]) == machine.spec.gpu_count // 2
        assert any(name.startswith("nvidia.com/mig-3g") for name in resources)


def test_planned_machines_can_be_built(tmp_path: Path) -> None:
    machines = create_machines(tmp_path, plan_machines(14, seed=3))

    assert len(find_machines(tmp_path)) == len(machines) == 14
    assert all(len(machine.hardware.gpus) == machine.spec.gpu_count for machine in machines)
    assert plan_machines(14, seed=3)[0] == machines[0].spec
