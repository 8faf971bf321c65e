"""`gpuloom explain` and `gpuloom whatif` beside a run, as a user calls them."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.scenarios.test_run_command import LONGEST_RUN_S, running, wait_for_line

MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  template:
    spec:
      containers:
      - name: main
        resources: {limits: {gpuloom.dev/gpu-milli: "100"}}
"""


def asked(directory: Path, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "gpuloom.cli.main", *arguments, "--dir", str(directory)],
        input=given,
        capture_output=True,
        text=True,
        timeout=30.0,
        check=False,
    )


@pytest.mark.timeout(600)
def test_questions_are_answered_beside_a_run_and_not_without_one(run_directory: Path) -> None:
    with running("--nodes", "4", "--dir", str(run_directory), "--headless", "--no-faults") as process:
        wait_for_line(process, "everything is up")
        wait_for_line(process, "placed=[1-9]")

        forecast = asked(run_directory, "whatif", "-f", "-", "-o", "json", given=MANIFEST)
        absent = asked(run_directory, "explain", "pod", "team-a/nobody")
        listed = asked(run_directory, "status")
        exporter = json.loads((run_directory / "endpoints.json").read_text())["gpu_metrics"][0]
        busiest = asked(run_directory, "top", "-o", "json")
        told = asked(run_directory, "events")
        versions = asked(run_directory, "version")
        findings = asked(run_directory, "doctor", "-o", "json")
        endpoints = json.loads((run_directory / "endpoints.json").read_text())
        certificates = Path(endpoints["certificate"]).parent
        program = subprocess.run(  # noqa: S603 - our own example
            [
                *(sys.executable, "examples/grpc_client.py", "--certificates", str(certificates)),
                *("--discovery", endpoints["discovery"], "--extender", endpoints["scheduler_extender"]),
            ],
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
        )
        with urlopen(exporter, timeout=10.0) as answer:  # noqa: S310 - our own address
            metrics = answer.read().decode()
        too_much = asked(run_directory, "whatif", "-f", "-", "--replicas", "1000", given=MANIFEST)

        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONGEST_RUN_S)

    assert json.loads(forecast.stdout)["replicas"] == 2, forecast.stderr
    assert (absent.returncode, absent.stderr) == (1, "gpuloom: no pod team-a/nobody\n")
    assert too_much.returncode == 1
    assert "why not:" in too_much.stdout
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[0].split()[:3] == ["NODE", "MODE", "MODEL"]
    assert len(json.loads(busiest.stdout)["rows"]) >= 4
    assert "4 GPUs, trusted" in program.stdout or "8 GPUs, trusted" in program.stdout, program.stderr
    assert "pods have devices" in program.stdout
    assert told.returncode == 0, told.stderr
    assert versions.returncode == 0, versions.stderr
    assert "discovery" in versions.stdout
    verdicts = {finding["check"]: finding["verdict"] for finding in json.loads(findings.stdout)["findings"]}
    assert findings.returncode == 0
    assert set(verdicts.values()) == {"ok", "skipped"}
    assert (verdicts["service discovery"], verdicts["trusted capacity"]) == ("ok", "ok")
    assert 'DCGM_FI_DEV_GPU_UTIL{gpu="0"' in metrics
    assert asked(run_directory / "elsewhere", "explain", "pod", "a/b").returncode == 3
    ended = asked(run_directory, "status")
    assert (ended.returncode, "the last run there has ended" in ended.stderr) == (3, True)
