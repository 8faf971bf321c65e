"""events, version, completion, --kube: what they make of what they read."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuloom.cli.commands.completion import PROGRAMS, Shell, completion_script, completion_variable
from gpuloom.cli.commands.events import event_lines, event_rows
from gpuloom.cli.commands.version import ServiceVersion, versions_of_metrics, versions_of_pods
from gpuloom.cli.connection.forwarding import Target, targets_of
from gpuloom.cli.output.forms import Output, rendered


def an_event(component: str, minute: int, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team"},
        "reportingComponent": component,
        "type": "Warning",
        "reason": "Untrusted",
        "message": "two\nlines",
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": "team"},
        "lastTimestamp": f"2026-11-18T12:{minute:02}:00Z",
        "count": 3,
    } | more


def test_only_our_events_are_shown_the_newest_last() -> None:
    found = [an_event("gpuloom-discovery", 5), an_event("kubelet", 6), an_event("gpuloom-autoscaler", 1)]

    rows = event_rows(found, "", warnings_only=False)
    lines = list(event_lines(rows, datetime(2026, 11, 18, 12, 10, tzinfo=UTC)))

    assert [row.component for row in rows] == ["gpuloom-autoscaler", "gpuloom-discovery"]
    assert lines[-1].split() == [
        "5m",
        "Warning",
        "discovery",
        "Untrusted",
        "team/pod/a",
        "two",
        "lines",
        "(x3)",
    ]


def test_events_are_chosen_by_object_and_kind_and_a_wrong_time_breaks_nothing() -> None:
    found = [
        an_event("gpuloom-discovery", 1, type="Normal"),
        an_event("gpuloom-discovery", 2, lastTimestamp="soon"),
        an_event("gpuloom-discovery", 3, involvedObject={"kind": "Node", "name": "a"}),
    ]

    assert len(event_rows(found, "Pod/a", warnings_only=True)) == 1
    # As the table writes it.
    assert len(event_rows(found, "team/pod/a", warnings_only=True)) == 1
    assert event_rows(found, "other/pod/a", warnings_only=False) == []
    assert len(event_rows(found, "", warnings_only=False)) == 3


def test_versions_are_what_processes_say_of_themselves_and_what_images_run() -> None:
    metrics = ['gpuloom_build_info{service="discovery",version="0.1.0"} 1.0\n', "", "other 1\n"]
    pods = [
        {
            "metadata": {"labels": {"app.kubernetes.io/name": "discovery"}},
            "spec": {
                "containers": [{"image": f"registry:5000/gpuloom/discovery{tail}"}, {"image": "proxy:1"}]
            },
        }
        for tail in (":0.2.0", ":0.2.0", "@sha256:ab", "")
    ]

    assert versions_of_metrics(metrics) == [ServiceVersion("discovery", "0.1.0", 1)]
    assert [(row.version, row.processes) for row in versions_of_pods(pods)] == [
        ("0.2.0", 2),
        ("latest", 1),
        ("sha256:ab", 1),
    ]


def test_ports_are_forwarded_to_services_with_grpc_but_not_to_every_agent() -> None:
    def service(name: str, *ports: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": name}
        spec = {"ports": [{"name": port, "port": 50000 + place} for place, port in enumerate(ports)]}
        return {"metadata": {"namespace": "gpus", "name": f"r-{name}", "labels": labels}, "spec": spec}

    found = targets_of(
        [service("discovery", "http", "grpc"), service("node-agent", "grpc"), service("webhook", "https")]
    )

    assert found == [Target("gpus", "r-discovery", 50001, "GPULOOM_DISCOVERY_ADDRESS")]


@pytest.mark.parametrize("shell", list(Shell))
def test_completion_scripts_are_ones_their_shell_can_read(shell: Shell) -> None:
    script = completion_script("gpu-autoscaler", shell)

    assert "_GPU_AUTOSCALER_COMPLETE" in script
    if program := shutil.which(shell.value):
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)  # noqa: S603


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("shell", "line"),
    [
        (Shell.BASH, {"COMP_WORDS": "{} st", "COMP_CWORD": "1"}),
        (Shell.ZSH, {"_TYPER_COMPLETE_ARGS": "{} st"}),
        (
            Shell.FISH,
            {"_TYPER_COMPLETE_ARGS": "{} st", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        ),
    ],
)
def test_what_the_script_of_a_shell_asks_for_is_answered(
    program: str, shell: Shell, line: dict[str, str]
) -> None:
    variable = completion_variable(program)
    assert variable in completion_script(program, shell)
    asked = {name: text.format(program) for name, text in line.items()}
    environment = {**os.environ, **asked, variable: f"complete_{shell}"}

    done = subprocess.run(
        (sys.executable, "-m", "gpuloom.cli.main"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "status" in done.stdout
    assert "Usage" not in done.stdout


def test_yaml_says_what_json_says() -> None:
    document = {"at": datetime(2026, 11, 18, tzinfo=UTC), "ratio": 0.5, "none": None}

    text = rendered(Output.YAML, document, list)

    assert text.splitlines() == ["at: '2026-11-18T00:00:00+00:00'", "ratio: 0.5", "none: null"]


A_KUBECTL = """#!/bin/sh
case "$*" in
*services*) echo '{"items": [{
  "metadata": {"name": "d", "namespace": "n", "labels": {"app.kubernetes.io/name": "discovery"}},
  "spec": {"ports": [{"name": "grpc", "port": 1}]}}]}' ;;
*secrets*) echo '{"items": [{
  "metadata": {"name": "d-cli-tls"}, "data": {"tls.crt": "", "tls.key": "", "ca.crt": ""}}]}' ;;
*) echo "Forwarding from 127.0.0.1:9 -> 1"; exec sleep 60 ;;
esac
"""
CONTEXTS = """
current-context: one
contexts: [{name: one, context: {cluster: one}}, {name: two, context: {cluster: two}}]
clusters: [{name: one, cluster: {server: 'http://127.0.0.1:1'}}, {name: two, cluster: {server: 'http://127.0.0.1:2'}}]
"""


def test_the_kubernetes_api_that_is_asked_is_of_the_cluster_that_kubectl_reaches(
    tmp_path: Path,
) -> None:
    kubectl, kubeconfig = tmp_path / "kubectl", tmp_path / "config"
    kubectl.write_text(A_KUBECTL, encoding="utf-8")
    kubectl.chmod(0o755)
    kubeconfig.write_text(CONTEXTS, encoding="utf-8")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)}
    command = (sys.executable, "-m", "gpuloom.cli.main", "--kube-context", "two", "doctor")

    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )

    assert done.returncode == 3
    assert "('127.0.0.1', 2)" in done.stderr
