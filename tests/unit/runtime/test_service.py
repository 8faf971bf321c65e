"""Real processes: options, exit codes and signals cannot be told from inside one."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuloom.runtime.metrics import package_version

SERVICE = """
import asyncio, time
from dataclasses import dataclass
from gpuloom.errors import InvalidRequestError
from gpuloom.runtime.app import App
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import text
from gpuloom.runtime.service import run_service
from gpuloom.runtime.settings import HttpConfig, LogConfig

@dataclass(frozen=True)
class TinyConfig:
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
    fault: str = setting("GPULOOM_TINY_FAULT", default="none", parse=text, help="What goes wrong")

async def fail_later() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("died in the group")

async def build(app: App, config: TinyConfig) -> None:
    if config.fault == "file":
        open("/nowhere/tls.crt")
    if config.fault == "ours":
        raise InvalidRequestError("the price list\\nis empty")
    if config.fault == "bug":
        raise KeyError("unexpected")

    if config.fault == "thread":
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    if config.fault == "group":
        tasks = await app.enter(asyncio.TaskGroup())
        tasks.create_task(fail_later())

    async def idle() -> None:
        if config.fault == "loop":
            raise RuntimeError("died")
        await asyncio.Event().wait()

    async def drain() -> None:
        if config.fault == "drain":
            await asyncio.Event().wait()

    app.add_loop("idle", idle)
    app.on_drain("work", drain)

run_service("tiny", TinyConfig, build)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("service") / "tiny.py"
    path.write_text(SERVICE)
    return path


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPULOOM_")}
    root = str(Path(__file__).parents[3])
    own = {"GPULOOM_HTTP_HOST": "127.0.0.1", "GPULOOM_HTTP_PORT": "0", "PYTHONPATH": root}
    return inherited | own | variables


def run(script: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(script), *options],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def started(script: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(script)],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        read_until(process, "started")
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], message: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        record: dict[str, Any] = json.loads(line)
        if record["message"] == message:
            return record
    raise AssertionError(f"the service ended without saying {message!r}")


def test_help_lists_the_settings(script: Path) -> None:
    done = run(script, "--help", GPULOOM_HTTP_PORT="nonsense")

    assert done.returncode == 0
    assert "GPULOOM_TINY_FAULT" in done.stdout
    assert "GPULOOM_HTTP_PORT" in done.stdout


def test_the_configuration_can_be_printed(script: Path) -> None:
    done = run(script, "--print-config")

    assert done.returncode == 0
    assert "GPULOOM_TINY_FAULT=none" in done.stdout.splitlines()


def test_the_version_is_told(script: Path) -> None:
    done = run(script, "--version")

    assert done.returncode == 0
    assert done.stdout == f"tiny {package_version()}\n"


def test_an_unknown_option_gives_one_line_and_exit_code_2(script: Path) -> None:
    done = run(script, "--prot=80")

    assert done.returncode == 2
    assert done.stderr == "tiny: unknown option '--prot=80', see --help\n"


def test_a_bad_port_and_a_misspelt_setting_give_one_line_each(script: Path) -> None:
    done = run(script, GPULOOM_HTTP_PORT="80800", GPULOOM_TINY_FUALT="x")

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "tiny: GPULOOM_HTTP_PORT must be a whole number from 0 to 65535, not '80800'",
        "tiny: GPULOOM_TINY_FUALT is not a setting, did you mean GPULOOM_TINY_FAULT?",
    ]


def test_a_port_in_use_gives_one_line_and_exit_code_1(script: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(script, GPULOOM_HTTP_PORT=str(taken.getsockname()[1]))

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("tiny: cannot start: ")
    assert "address already in use" in line


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("file", "No such file or directory: /nowhere/tls.crt"), ("ours", "the price list is empty")],
)
def test_an_expected_failure_to_start_is_one_line_without_a_traceback(
    script: Path, fault: str, reason: str
) -> None:
    done = run(script, GPULOOM_TINY_FAULT=fault)

    assert done.returncode == 1
    assert done.stderr == f"tiny: cannot start: {reason}\n"
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("fault", "text"), [("bug", "KeyError: 'unexpected'"), ("loop", "RuntimeError: died")]
)
def test_an_unexpected_failure_is_one_json_record_with_its_traceback(
    script: Path, fault: str, text: str
) -> None:
    done = run(script, GPULOOM_TINY_FAULT=fault)

    records = [json.loads(line) for line in done.stdout.splitlines()]
    (critical,) = [record for record in records if record["level"] == "critical"]
    assert done.returncode == 1
    assert done.stderr == ""
    assert critical["error"].startswith("Traceback")
    assert critical["error"].endswith(text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_with_exit_code_0(script: Path, number: signal.Signals) -> None:
    with started(script) as process:
        process.send_signal(number)
        record = read_until(process, "stopped")

        assert process.wait(timeout=15) == 0
        assert record["exit_code"] == 0


def test_a_second_signal_ends_the_service_at_once(script: Path) -> None:
    with started(script, GPULOOM_TINY_FAULT="drain", GPULOOM_DRAIN_TIMEOUT="10m") as process:
        process.send_signal(signal.SIGTERM)
        read_until(process, "draining")
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=15) == 130


def test_a_drain_that_hangs_does_not_keep_the_service_alive(script: Path) -> None:
    with started(script, GPULOOM_TINY_FAULT="drain", GPULOOM_DRAIN_TIMEOUT="100ms") as process:
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=15) == 0


def test_a_thread_that_hangs_does_not_keep_the_service_alive(script: Path) -> None:
    with started(script, GPULOOM_TINY_FAULT="thread", GPULOOM_DRAIN_TIMEOUT="1ms") as process:
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=15) == 1
        assert process.stderr is not None
        assert process.stderr.read().startswith("tiny: did not stop within")


def test_a_task_group_that_fails_ends_the_service_and_its_error_is_logged(script: Path) -> None:
    done = run(script, GPULOOM_TINY_FAULT="group")

    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert done.stderr == ""
    assert any("died in the group" in record.get("error", "") for record in records)
