"""`gpuloom run` as a user calls it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuloom.roster import ROSTER
from gpuloom.sim.mesh.plan import central

PROCESSES = 8 + len(central(ROSTER))
"""With two nodes: API, cloud, kubelets, scheduler, two players, two agents, services."""
TRAINING = "services.optimizer.training"
"""The optimizer's own child, now and then."""
LONGEST_RUN_S = 60.0
MOST_REPORTS = 20


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpuloom.cli.main", "run", *arguments]


def call(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own command
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
        env={**os.environ, **environment},
    )


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(  # noqa: S603 - our own command
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: "subprocess.Popen[str]", pattern: str) -> None:
    """Read stderr up to a line like that; what comes before it is part of a failure's text."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if re.search(pattern, line):
            return
    pytest.fail(f"no line like {pattern!r} in: {''.join(seen)}")


def processes_in(directory: Path) -> list[str]:
    """All processes of a run work in its directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == directory:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def lasting_processes_in(directory: Path) -> list[str]:
    return [line for line in processes_in(directory) if TRAINING not in line]


def test_a_short_run_ends_by_itself_having_placed_pods(run_directory: Path) -> None:
    result = call(
        "--headless", "--duration", "10s", "--nodes", "3", "--dir", str(run_directory), "-o", "json"
    )

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["pods"]["placed"] > 0
    assert summary["audit"]["double_bookings"] == []
    assert summary["audit"]["machines"] == 3
    assert "placed=" in result.stderr
    assert "double_bookings=0" in result.stderr
    assert "GPU metrics: http://127.0.0.1:" in result.stderr
    assert processes_in(run_directory) == []


def test_ctrl_c_ends_all_processes_with_a_summary_and_the_directory_is_free_again(
    run_directory: Path,
) -> None:
    with running("--nodes", "2", "--no-faults", "--dir", str(run_directory)) as process:
        wait_for_line(process, "everything is up")
        wait_for_line(process, "placed=[1-9]")
        during = lasting_processes_in(run_directory)
        for _ in range(MOST_REPORTS):
            if len(during) == PROCESSES:
                break
            # A leader that was too slow for its lease ends, and is started again.
            wait_for_line(process, "placed=")
            during = lasting_processes_in(run_directory)
        second = call("--nodes", "2", "--dir", str(run_directory), "--duration", "5s")

        process.send_signal(signal.SIGINT)
        summary, _ = process.communicate(timeout=LONGEST_RUN_S)

    assert len(during) == PROCESSES, "\n".join(during)
    assert second.returncode == 3
    assert second.stderr == (
        f"gpuloom run: another `gpuloom run` is using {run_directory}; "
        "end it, or name another directory with --dir\n"
    )
    assert process.returncode == 0
    assert "double bookings" in summary
    assert processes_in(run_directory) == []


def test_ctrl_c_during_the_start_leaves_nothing_behind(run_directory: Path) -> None:
    with running("--nodes", "2", "--dir", str(run_directory)) as process:
        wait_for_line(process, "processes for 2 simulated nodes")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONGEST_RUN_S)

    assert process.returncode == 130
    assert said == "gpuloom run: interrupted before everything was up\n"
    assert processes_in(run_directory) == []


def test_a_second_signal_ends_everything_at_once_and_in_one_line(run_directory: Path) -> None:
    with running("--nodes", "2", "--dir", str(run_directory)) as process:
        wait_for_line(process, "everything is up")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONGEST_RUN_S)

    assert process.returncode == 130
    assert said.endswith("gpuloom: interrupted\n")
    assert "Traceback" not in said
    assert processes_in(run_directory) == []


def test_a_part_that_can_not_start_is_named_with_its_log(tmp_path: Path, run_directory: Path) -> None:
    broken = tmp_path / "broken" / "services" / "node_agent" / "__init__.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("raise SystemExit('no driver for this GPU')")
    (broken.parent.parent / "__init__.py").touch()

    result = call("--nodes", "1", "--dir", str(run_directory), PYTHONPATH=str(tmp_path / "broken"))

    assert result.returncode == 3
    said = result.stderr.splitlines()[-1]
    assert "could not be started: it ended with exit code 1" in said
    assert said.endswith("no driver for this GPU")
    assert processes_in(run_directory) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--gpus", "3"], "No such option: --gpus"),
        (["--duration", "soon"], "must be a positive duration such as 30s, 500ms or 2m, not 'soon'"),
        (["--nodes", "0"], "must be a whole number from 1 to 1000, not '0'"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    result = call(*arguments, "--dir", str(tmp_path / "run"))

    assert result.returncode == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
