"""The openb benchmark on a cluster of three nodes."""

from pathlib import Path

import pytest

from tests.bench.placement.__main__ import main
from tests.bench.placement.ours import Product
from tests.bench.placement.rivals import BestFit, FragmentationGradientDescent, Policy
from tests.bench.placement.trace import (
    Machine,
    Task,
    arrivals,
    capacity_milli,
    read_machines,
    read_tasks,
)

NODES = """sn,cpu_milli,memory_mib,gpu,model
a,64000,262144,2,P100
b,64000,262144,2,T4
c,96000,393216,4,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
one,4000,8192,1,1000,
half,2000,4096,1,500,
pinned,2000,4096,1,500,P100|V100
pair,8000,8192,2,1000,
none,8000,8192,0,0,
"""


def a_folder(path: Path) -> Path:
    (path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (path / "openb_pod_list_tiny.csv").write_text(PODS)
    return path


def test_one_line_a_variant_names_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_folder(tmp_path)

    status = main([str(tmp_path), "--seeds", "2"])

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tiny: gpuloom ")
    assert "FGD " in line
    assert "BestFit " in line
    assert status in (0, 1)


def test_families_are_made_from_the_default_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_folder(tmp_path)
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)

    main([str(tmp_path), "--seeds", "1", "--variant", "tiny", "--variant", "shares-100"])

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["tiny", "shares-100"]


def test_a_folder_without_the_variant_is_no_success(tmp_path: Path) -> None:
    assert main([str(a_folder(tmp_path)), "--variant", "other"]) == 1


def test_arrivals_end_when_all_of_the_capacity_has_arrived(tmp_path: Path) -> None:
    tasks = read_tasks(a_folder(tmp_path) / "openb_pod_list_tiny.csv")

    percents = [percent for _, percent in arrivals(tasks, 8000, seed=1)]

    assert tasks[2].models == ("P100", "V100")
    assert percents == sorted(percents)
    assert round(percents[-1]) <= 100
    assert list(arrivals(tasks, 8000, seed=1)) == list(arrivals(tasks, 8000, seed=1))


def test_a_list_needs_no_more_than_the_number_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "short.csv").write_text("num_gpu,cpu_milli\n2,4000\n1,\n0,1000.0\n")
    (tmp_path / "empty.csv").write_text("num_gpu,gpu_milli,gpu_spec,cpu_milli\n1,nan,nan,500\n1,300\n")

    assert read_tasks(tmp_path / "short.csv") == [
        Task(4000, 0, 2, 1000),
        Task(0, 0, 1, 1000),
        Task(1000, 0, 0, 0),
    ]
    assert read_tasks(tmp_path / "empty.csv") == [Task(500, 0, 1, 1000), Task(0, 0, 1, 300)]


def test_a_node_list_needs_no_models(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,memory_mib,gpu\na,64000,262144,2\n")

    assert read_machines(tmp_path) == [Machine(64000, 262144, 2, "")]


@pytest.mark.parametrize("policy", ["gpuloom", "FGD", "BestFit"])
def test_no_policy_gives_more_than_there_is(policy: str) -> None:
    machines = [Machine(8000, 16384, 2, "T4"), Machine(4000, 16384, 1, "P100")]
    half, whole, pinned = Task(1000, 1024, 1, 500), Task(1000, 1024, 1, 1000), Task(1, 1, 1, 500, ("V100",))
    made: dict[str, Policy] = {
        "gpuloom": Product(machines),
        "FGD": FragmentationGradientDescent(machines, [half, whole]),
        "BestFit": BestFit(machines),
    }

    placed = [task for task in [half, whole, pinned, half, half, whole, half] if made[policy].place(task)]

    assert pinned not in placed
    assert sum(task.size_milli for task in placed) == capacity_milli(machines)
