"""The supervisor with real, tiny processes."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuloom.runtime.clock import FakeClock, SystemClock, deadline
from gpuloom.sim.processes.child_process import Probe, ProcessSpec, bound_log, last_lines
from gpuloom.sim.processes.process_guard import after
from gpuloom.sim.processes.supervisor import ProcessState, RestartPolicy, StartError, Supervisor

FOREVER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"
WITH_CHILD = f"import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); {FOREVER}"
LONGEST_WAIT_S = 20.0


def a_process(folder: Path, name: str, code: str, *, probed: bool = True) -> ProcessSpec:
    log = folder / f"{name}.log"
    return ProcessSpec(
        name,
        (sys.executable, "-I", "-S", "-c", code),
        log,
        {"PATH": os.environ["PATH"]},
        ready=_says_up(log) if probed else None,
    )


def _says_up(log: Path) -> Probe:
    async def probe() -> bool:
        return "up" in said(log)

    return probe


def said(log: Path) -> str:
    return log.read_text() if log.is_file() else ""


def is_running(pid: int) -> bool:
    """A zombie, whose parent has not looked yet, runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def wait_until(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    async with deadline(clock, LONGEST_WAIT_S):
        while not condition():
            await clock.sleep(0.01)


def pid_of(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.pid(name)
    assert pid is not None
    return pid


def state_of(supervisor: Supervisor, name: str) -> ProcessState:
    return next(status.state for status in supervisor.statuses() if status.name == name)


async def test_a_stage_starts_only_when_the_one_before_is_ready(tmp_path: Path) -> None:
    first_log = tmp_path / "first.log"
    first = a_process(tmp_path, "first", FOREVER)
    second = a_process(tmp_path, "second", f"print(open({str(first_log)!r}).read()); {FOREVER}")

    async with Supervisor(SystemClock()) as supervisor:
        await supervisor.start([[first], [second]])

    assert said(second.log_path).splitlines()[0] == "up"


async def test_leaving_the_block_ends_all_processes(tmp_path: Path) -> None:
    specs = [a_process(tmp_path, name, FOREVER) for name in ("one", "two", "three")]

    async with Supervisor(SystemClock()) as supervisor:
        await supervisor.start([specs])
        pids = [pid_of(supervisor, spec.name) for spec in specs]

    assert not any(map(is_running, pids))
    assert {status.state for status in supervisor.statuses()} == {ProcessState.STOPPED}


async def test_a_process_that_was_killed_comes_back(tmp_path: Path) -> None:
    async with Supervisor(SystemClock()) as supervisor:
        await supervisor.start([[a_process(tmp_path, "one", FOREVER)]])
        killed = pid_of(supervisor, "one")

        supervisor.kill("one", signal.SIGKILL)
        await supervisor.until(lambda s: s.restarts("one") == 1 and s.pid("one") not in (None, killed))

        assert is_running(pid_of(supervisor, "one"))
        assert supervisor.statuses()[0].last_exit == "was ended by SIGKILL"


async def test_waits_between_restarts_grow_up_to_their_cap(tmp_path: Path) -> None:
    clock = FakeClock()
    policy = RestartPolicy(first_delay_s=1.0, delay_cap_s=4.0, max_early_deaths=99)
    spec = a_process(tmp_path, "mortal", "raise SystemExit(3)", probed=False)

    async with Supervisor(clock, policy) as supervisor:
        await supervisor.start([[spec]])
        for number, ceiling_s in enumerate((1.0, 2.0, 4.0, 4.0)):
            await supervisor.until(lambda s: state_of(s, "mortal") is ProcessState.WAITING)
            began_s = clock.monotonic()
            while supervisor.restarts("mortal") == number:
                await clock.advance(0.01)

            assert 0.49 * ceiling_s <= clock.monotonic() - began_s <= 1.02 * ceiling_s


async def test_a_process_that_dies_at_every_start_fails_in_one_line_with_its_log(tmp_path: Path) -> None:
    policy = RestartPolicy(first_delay_s=0.01, max_early_deaths=3)
    spec = a_process(tmp_path, "hopeless", "print('bad port 99999'); raise SystemExit(2)")

    async with Supervisor(SystemClock(), policy) as supervisor:
        with pytest.raises(StartError) as failure:
            await supervisor.start([[spec]])

    message = str(failure.value)
    assert message.startswith("hopeless could not be started: it ended with exit code 2")
    assert str(spec.log_path) in message
    assert "bad port 99999" in message
    assert "\n" not in message


async def test_a_process_that_gets_never_ready_fails_when_the_time_is_up(tmp_path: Path) -> None:
    clock = FakeClock()
    spec = a_process(tmp_path, "slow", "import time; time.sleep(600)")

    async with Supervisor(clock) as supervisor:
        starting = asyncio.create_task(supervisor.start([[spec]]))
        await supervisor.until(lambda s: bool(s.statuses()) and s.pid("slow") is not None)
        await clock.advance(spec.start_timeout_s + 1)

        with pytest.raises(StartError, match="slow was not ready within 120 s"):
            await starting


async def test_a_command_that_does_not_exist_fails_the_start(tmp_path: Path) -> None:
    spec = ProcessSpec("nothing", ("/no/such/command",), tmp_path / "nothing.log", ready=_says_up(tmp_path))

    async with Supervisor(SystemClock(), RestartPolicy(first_delay_s=0.01)) as supervisor:
        with pytest.raises(StartError, match="No such file or directory: /no/such/command"):
            await supervisor.start([[spec]])


async def test_a_start_that_fails_half_way_leaves_nothing_running(tmp_path: Path) -> None:
    good = a_process(tmp_path, "good", FOREVER)
    bad = a_process(tmp_path, "bad", "raise SystemExit(1)")

    with pytest.raises(StartError):  # noqa: PT012 - leaving the block is what is tested
        async with Supervisor(SystemClock(), RestartPolicy(first_delay_s=0.01)) as supervisor:
            starting = asyncio.create_task(supervisor.start([[good], [bad]]))
            await supervisor.until(lambda s: len(s.statuses()) == 2)
            pid = pid_of(supervisor, "good")
            await starting

    assert not is_running(pid)


async def test_a_critical_process_that_is_given_up_is_a_failure(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = f"import os; os.path.exists({str(flag)!r}) and exit(1); open({str(flag)!r}, 'w'); {FOREVER}"
    spec = a_process(tmp_path, "once", code, probed=False)

    async with Supervisor(SystemClock(), RestartPolicy(first_delay_s=0.01)) as supervisor:
        await supervisor.start([[spec]])
        await wait_until(lambda: "up" in said(spec.log_path))
        fine = supervisor.failure()
        supervisor.kill("once")
        await supervisor.until(lambda s: state_of(s, "once") is ProcessState.GIVEN_UP)

        assert fine == ""
        assert supervisor.failure().startswith("once was given up: it ended with exit code 1")


async def test_a_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    async with Supervisor(SystemClock(), stop_timeout_s=0.2) as supervisor:
        await supervisor.start([[a_process(tmp_path, "deaf", DEAF)]])
        pid = pid_of(supervisor, "deaf")

    assert not is_running(pid)
    assert supervisor.statuses()[0].last_exit == "was ended by SIGKILL"


async def test_what_a_killed_process_started_ends_too(tmp_path: Path) -> None:
    async with Supervisor(SystemClock()) as supervisor:
        spec = a_process(tmp_path, "parent", WITH_CHILD)
        await supervisor.start([[spec]])
        grandchild = int(said(spec.log_path).split()[0])

        os.kill(pid_of(supervisor, "parent"), signal.SIGKILL)
        await wait_until(lambda: not is_running(grandchild))


async def test_stopping_while_a_restart_is_due_ends_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    spec = a_process(tmp_path, "mortal", "raise SystemExit(1)", probed=False)

    async with Supervisor(clock) as supervisor:
        await supervisor.start([[spec]])
        await supervisor.until(lambda s: state_of(s, "mortal") is ProcessState.WAITING)

    assert supervisor.restarts("mortal") == 0


async def test_processes_end_even_if_the_supervisor_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    script = f"""
import asyncio, sys
from pathlib import Path
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.supervisor import Supervisor

async def main():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    spec = ProcessSpec("child", (sys.executable, "-c", code), Path({str(log)!r}))
    async with Supervisor(SystemClock()) as supervisor:
        await supervisor.start([[spec]])
        await asyncio.sleep(600)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    await wait_until(lambda: said(log).endswith("\n"))
    child = int(said(log))

    process.kill()
    await process.wait()
    await wait_until(lambda: not is_running(child))


def test_the_guard_forgets_what_has_ended_and_ignores_a_torn_line() -> None:
    groups: set[int] = set()
    for line in ("+10\n", "+11\n", "-10\n", "nonsense\n", "+1"):
        groups = after(groups, line)

    assert groups == {11}


def test_a_log_that_grew_too_large_is_moved_aside_once(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    with log.open("a") as writer:
        writer.write("x" * 100)
        writer.flush()

        bound_log(log, max_bytes=50)
        writer.write("new")

    assert log.read_text() == "new"
    assert (tmp_path / "one.log.1").read_text() == "x" * 100


def test_a_log_within_its_bound_stays(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("first\n\nsecond\n")

    bound_log(log, max_bytes=50)

    assert last_lines(log, 2) == ["first", "second"]
