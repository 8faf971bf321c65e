"""The mesh of docker-compose.yml: confined, healthy, placing pods, and back after every kill."""

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from deploy.docker.build import IMAGES
from gpuloom.roster import ROSTER
from tests.containers.engine import Project, docker, eventually, require_engine

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

OURS = [name for name in IMAGES if name != "certificates"]
OTHERS = ["postgres", "prometheus"]
IN_A_CONTAINER = """
import errno, json, os
try:
    open("/app/written", "w")
    written = "yes"
except OSError as error:
    written = errno.errorcode[error.errno]
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps([os.getuid(), os.getgid(), written, status["Uid"].split(), int(status["CapEff"], 16)]))
"""
AUDIT = """
import json, pathlib
from gpuloom.sim.machines.audit import audit
report = audit(pathlib.Path("/var/lib/gpuloom/machines"))
print(json.dumps([report.starts, [str(finding) for finding in report.findings]]))
"""


def test_the_file_is_right_with_every_profile_and_what_it_mounts_is_there() -> None:
    require_engine()

    said = Project("gpuloom-config").compose(
        "--profile", "grafana", "--profile", "cli", "config", "--format", "json"
    )

    services = json.loads(said)["services"]
    mounted = {
        one["source"]
        for each in services.values()
        for one in each.get("volumes", ())
        if one["type"] == "bind"
    }
    assert {*OURS, *OTHERS, "certificates", "cli", "grafana"} == services.keys()
    assert mounted
    assert {source for source in mounted if not Path(source).exists()} == set()


def test_every_container_of_ours_runs_as_65532_on_a_read_only_root(project: Project) -> None:
    for service in OURS:
        answer = json.loads(project.compose("exec", "-T", service, "python", "-c", IN_A_CONTAINER))

        assert answer == [65532, 65532, "EROFS", ["65532"] * 4, 0], service
    for service in (*OURS, "certificates", *OTHERS):
        host = project.container(service)["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert host["Memory"] > 0, service
        bound = [each["HostIp"] for ports in (host["PortBindings"] or {}).values() for each in ports]
        assert set(bound) <= {"127.0.0.1"}, service


def test_pods_are_placed_and_the_command_line_sees_it_from_the_host(project: Project) -> None:
    eventually(lambda: placed(project), "a pod is placed")

    command = (sys.executable, "-m", "gpuloom.cli.main", "--compose", "status", "-o", "json")
    done = subprocess.run(
        command, env=project.environment, cwd=project.directory, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["nodes"]) == 12
    assert "12 nodes" in project.compose("run", "--rm", "-T", "cli", "status")


def test_prometheus_scrapes_every_service_and_has_our_rules(project: Project) -> None:
    def targets_up() -> bool:
        found = get(project, "prometheus", 9090, "/api/v1/query?" + urllib.parse.urlencode({"query": "up"}))
        states = {each["metric"]["instance"]: each["value"][1] for each in found["data"]["result"]}
        return all(states.get(f"{row.extra}:8080") == "1" for row in ROSTER)

    eventually(targets_up, "Prometheus scrapes every service")

    groups = get(project, "prometheus", 9090, "/api/v1/rules")["data"]["groups"]
    assert [rule for group in groups for rule in group["rules"]]


def test_each_container_comes_back_when_killed_and_no_device_is_booked_twice(project: Project) -> None:
    eventually(lambda: placed(project), "a pod is placed")

    for service in (*OURS, *OTHERS):
        killed = kill(project, service)
        eventually(partial(is_back, project, service, killed), f"{service} is back and healthy")
        before = placed(project)
        eventually(partial(newly_placed, project, before), f"pods are placed after {service} was killed")

    project.compose("stop", "simulation")
    starts, findings = json.loads(
        project.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "simulation", "-c", AUDIT)
    )
    assert starts > len(OURS)
    assert findings == []


def kill(project: Project, service: str) -> int:
    """Its first process, from outside: a container that `docker kill` ended would not be started again."""
    # Never 0, which is no process but the killer's own group.
    pid = eventually(lambda: int(project.container(service)["State"]["Pid"]), f"{service} runs")
    program = f"import os, signal; os.kill({pid}, signal.SIGKILL)"
    rights = ("--pid", "host", "--user", "0", "--cap-drop", "ALL", "--cap-add", "KILL", "--network", "none")
    reference = project.container("simulation")["Config"]["Image"]
    docker("run", "--rm", *rights, "--entrypoint", "python", reference, "-c", program)
    return pid


def is_back(project: Project, service: str, killed: int) -> bool:
    found = project.container(service)
    healthy = found["State"]["Health"]["Status"] == "healthy"
    return healthy and found["RestartCount"] > 0 and found["State"]["Pid"] not in (0, killed)


def newly_placed(project: Project, known: set[str]) -> set[str]:
    return placed(project) - known


def placed(project: Project) -> set[str]:
    """The pods that are on a node with devices that GPULoom chose."""
    pods = get(project, "simulation", 8001, "/api/v1/pods")["items"]
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if pod["spec"].get("nodeName") and "gpuloom.dev/allocation" in pod["metadata"].get("annotations", {})
    }


def get(project: Project, service: str, port: int, path: str) -> dict[str, Any]:
    """A busy machine may leave one question without an answer; what matters is that there will be one."""

    def asked() -> dict[str, Any] | None:
        url = f"http://{project.address(service, port)}{path}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, HTTPException):
            return None
        return found

    answer = eventually(asked, f"{service} answers {path}")
    assert answer is not None
    return answer
