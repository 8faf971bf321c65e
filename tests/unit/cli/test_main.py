"""How the command as a whole behaves: usage, versions, errors and exit codes."""

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from gpuloom.cli import main as cli
from gpuloom.cli.connection.endpoints import Endpoint, find_endpoint, unreachable_text
from gpuloom.cli.output.exits import one_line
from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, UnavailableError
from gpuloom.runtime.config import ConfigError
from gpuloom.sim.mesh.run_directory import open_run_directory


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--gpus", "3"], "gpuloom run: No such option: --gpus"),
        (["run", "--nodes", "many"], "must be a whole number from 1 to 1000, not 'many'"),
        (["run", "--nodes", "1001"], "must be a whole number from 1 to 1000, not '1001'"),
        (["run", "--seed", "-1"], "must be a whole number from 0"),
        (["run", "--duration", "0s"], "must be a positive duration"),
        (["run", "--rate", "none"], "must be a whole number from 1 to 60000"),
        (["run", "--output", "xml"], "'xml' is not one of 'text', 'json'"),
        (["run", "now"], "unexpected extra argument"),
        (["reserve", "create", "r", "--until", "2020-01-01T00:00:00Z"], "has passed already"),
        (
            ["reserve", "create", "r", "--from", "2999-01-02T00:00:00Z", "--until", "2999-01-01T00:00:00Z"],
            "must end after it begins",
        ),
        (["reserve", "create", "r", "--from", "2020-01-01T00:00:00Z", "--ttl", "1h"], "be over already"),
        (["reserve", "create", "r", "--ttl", "999999999h"], "lasts at most 3650 days"),
        (["walk"], "gpuloom: No such command 'walk'"),
        (["autoscaler"], "gpuloom autoscaler: Missing command. (see gpuloom autoscaler --help)"),
        (["reserve"], "gpuloom reserve: Missing command. (see gpuloom reserve --help)"),
        (["events", "--for", "train-0"], "gpuloom: --for is KIND/NAME, as pod/train-0, not train-0"),
        (["explain", "pod", ""], "gpuloom: name a pod as NAMESPACE/NAME, not ''"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.exit_code_of(arguments)

    said = capsys.readouterr().err
    assert code == 2
    assert complaint in said
    assert said.count("\n") == 1


def test_help_and_version_are_fine(capsys: pytest.CaptureFixture[str]) -> None:
    codes = [cli.exit_code_of(arguments) for arguments in ([], ["--help"], ["run", "--help"], ["--version"])]

    said = capsys.readouterr().out
    assert codes == [0, 0, 0, 0]
    assert "--headless" in said
    assert "gpuloom 0." in said


COMMANDS = ("", "run", "status", "topology", "explain", "explain pod", "whatif", "scheduler-config", "certs")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_both_spellings_of_help_in_full(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [cli.exit_code_of([*command.split(), option]) for option in ("-h", "--help")]

    said = capsys.readouterr().out
    assert codes == [0, 0]
    assert "-h, --help" in said
    assert "...\n" not in said.replace("[ARGS]...", "")


def test_help_promises_only_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    cli.exit_code_of(["--help"])

    said = capsys.readouterr().out
    assert "places GPU work" in said
    assert "scale to zero" not in said


@pytest.mark.parametrize("command", ["status", "topology", "explain pod a/b", "whatif -f -"])
def test_after_a_run_a_command_says_at_once_that_none_is_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_run_directory(tmp_path / "run", ["n1"]) as directory:
        endpoints = dict.fromkeys(
            ("discovery", "scheduler_extender", "certificate", "key", "authority"), "x:1"
        )
        directory.endpoints_file.write_text(json.dumps(endpoints))
    pod = '{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"containers": []}}'
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(pod.encode())))

    code = cli.exit_code_of([*command.split(), "--dir", str(directory.path)])

    assert code == 3
    assert capsys.readouterr().err.startswith(
        f"gpuloom: no mesh runs in {directory.path}, the last run there has ended: start one with"
    )


@pytest.mark.parametrize("command", ["events", "doctor", "version"])
def test_without_a_cluster_a_command_says_that_there_is_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "GPULOOM_KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)

    code = cli.exit_code_of([command, "--dir", str(tmp_path / "run")])

    assert code == 3
    assert "no Kubernetes API to talk to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["status"], ["--kube", "status"]),
        (["explain", "pod", "run"], ["--kube", "explain", "pod", "run"]),
        (["status", "--help", "-o", "json"], ["status", "--help", "-o", "json"]),
        (["doctor", "-o", "json"], ["doctor", "-o", "json"]),
        ([], []),
    ],
)
def test_as_a_plugin_the_cluster_of_kubectl_is_asked(
    arguments: list[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl-gpuloom", *arguments])
    told: list[list[str]] = []
    monkeypatch.setattr(cli, "main", told.append)

    cli.plugin()

    assert told == [asked]


def test_while_a_run_has_its_directory_its_addresses_are_used(tmp_path: Path) -> None:
    with open_run_directory(tmp_path / "run", ["n1"]) as directory:
        endpoints = dict.fromkeys(("discovery", "certificate", "key", "authority"), "127.0.0.1:1")
        directory.endpoints_file.write_text(json.dumps(endpoints))

        assert find_endpoint("discovery", "", directory.path, {}).address == "127.0.0.1:1"


def test_a_directory_of_somebody_else_is_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path_factory.mktemp("theirs")
    (directory / "file").touch()

    code = cli.exit_code_of(["run", "--dir", str(directory)])

    assert code == 2
    assert capsys.readouterr().err.startswith(f"gpuloom run: {directory} is not empty")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequestError("x"), 2),
        (UnavailableError("x"), 3),
        (ConflictError("x"), 1),
        (ConfigError(("GPULOOM_TLS_CERT_FILE must be set",)), 2),
    ],
)
def test_an_error_has_the_exit_code_of_its_kind(error: GpuloomError, code: int) -> None:
    assert cli.code_of(error) == code


def test_what_the_transport_says_reaches_nobody() -> None:
    endpoint = Endpoint("scheduler_extender", "127.0.0.1:1", {})
    said = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused"

    assert unreachable_text(endpoint, said) == (
        "scheduler_extender at 127.0.0.1:1 can't be reached: connection refused"
    )
    assert unreachable_text(endpoint, "socket closed") == "scheduler_extender at 127.0.0.1:1 can't be reached"


def test_a_failure_is_one_line_whatever_is_in_it() -> None:
    assert one_line(ConflictError("one\n  two")) == "one two"
    assert one_line(FileNotFoundError(2, "No such file", "a.txt")) == "No such file: a.txt"
    assert one_line(ValueError()) == "ValueError"
