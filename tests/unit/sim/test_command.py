import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuloom.errors import InvalidRequestError
from gpuloom.sim.command import EXIT_FAILED, EXIT_OK, run_command
from gpuloom.sim.kubelet.__main__ import main as kubelet
from gpuloom.sim.scheduler.__main__ import main as scheduler
from gpuloom.sim.workloads.player import main as workload

API = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        (kubelet, ["--api", API, "--machines", "/nowhere"], "'/nowhere' is not a directory"),
        (kubelet, ["--api", "127.0.0.1:80", "--machines", "/"], "is not an address"),
        (kubelet, ["--machines", "/"], "one of the arguments --api --kubeconfig is required"),
        (kubelet, ["--api", API, "--kubeconfig", "k", "--machines", "/"], "not allowed with argument --api"),
        (kubelet, ["--api", API, "--machines", "/", "--max-publish-delay", "soon"], "is not a duration"),
        (kubelet, ["--api", API, "--machines", "/", "--sead", "1"], "unrecognized arguments: --sead"),
        (scheduler, ["--api", API], "--extender"),
        (scheduler, ["--api", API, "--extender", "http://127.0.0.1:port"], "is not an address"),
        (scheduler, ["--api", API, "--extender", API, "--cert", "c.pem"], "needs its key"),
        (scheduler, ["--api", API, "--extender", API, "--ca", "/no/ca.pem"], "certificates"),
        (workload, ["--api", API, "--rate", "0"], "pods a minute above 0"),
    ],
)
def test_a_mistake_is_one_clear_line(
    command: Callable[[Sequence[str]], int],
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(arguments)

    written = capsys.readouterr().err
    assert ended.value.code == 2
    assert text in written
    assert written.count("\n") == 1


def test_a_directory_without_machines_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuloom.sim.command.configure_logging", lambda *_: None)

    code = kubelet(["--api", API, "--machines", str(tmp_path)])

    assert code == EXIT_FAILED
    assert capsys.readouterr().err == f"sim-kubelet: no machines in {tmp_path}\n"


def test_a_kubeconfig_that_is_not_there_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuloom.sim.command.configure_logging", lambda *_: None)
    absent = tmp_path / "kubeconfig"

    code = kubelet(["--kubeconfig", str(absent), "--machines", str(tmp_path)])

    assert code == EXIT_FAILED
    assert capsys.readouterr().err == f"sim-kubelet: kubeconfig {absent}: no such file\n"


def test_an_error_inside_a_task_group_is_told_too_but_a_bug_is_raised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuloom.sim.command.configure_logging", lambda *_: None)

    async def fail(error: Exception) -> None:
        async def work() -> None:
            raise error

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())

    async def succeed() -> None:
        return

    assert run_command("part", lambda: fail(InvalidRequestError("no such thing"))) == EXIT_FAILED
    assert capsys.readouterr().err == "part: no such thing\n"
    assert run_command("part", succeed) == EXIT_OK
    with pytest.raises(ExceptionGroup):
        run_command("part", lambda: fail(KeyError("bug")))
