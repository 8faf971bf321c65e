"""One operating system process with its log file, and the guard that ends it if we are killed.

Decides how a process is started and signalled; when, and what its death means, is the supervisor's.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuloom.sim.processes import process_guard

MAX_LOG_BYTES = 20 * 1024 * 1024
_TAIL_BYTES = 8192

Probe = Callable[[], Awaitable[bool]]
"""Whether the process can do its work now. It answers within a few seconds and raises nothing."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run. Without a probe it counts as ready once it runs.

    A critical process that is given up makes the rest pointless.
    """

    name: str
    argv: tuple[str, ...]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: Path | None = None
    ready: Probe | None = None
    start_timeout_s: float = 120.0
    critical: bool = True


class ProcessGuard:
    """Our end of the pipe to `process_guard`, which knows every group that must not outlive us."""

    def __init__(self, process: asyncio.subprocess.Process, write_end: int) -> None:
        self._process = process
        self._write_end = write_end

    @classmethod
    async def start(cls, keep_open: tuple[int, ...] = ()) -> "ProcessGuard":
        """`keep_open` are descriptors (of locks) that stay open until the last process has ended."""
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(process_guard.__file__))),
                stdin=read_end,
                pass_fds=keep_open,
                start_new_session=True,
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return cls(process, write_end)

    def add(self, group: int) -> None:
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._write(f"-{group}\n")

    async def close(self) -> None:
        """Returns when the guard has ended what was left."""
        os.close(self._write_end)
        await self._process.wait()

    def _write(self, line: str) -> None:
        try:
            os.write(self._write_end, line.encode())
        except BrokenPipeError:
            # Somebody killed the guard: we still end our processes ourselves.
            return


class ChildProcess:
    """A running process: the leader of its own session, so that Ctrl-C reaches only the supervisor."""

    def __init__(self, process: asyncio.subprocess.Process, guard: ProcessGuard) -> None:
        self._process = process
        self._guard = guard
        guard.add(process.pid)

    @classmethod
    async def spawn(cls, spec: ProcessSpec, guard: ProcessGuard) -> "ChildProcess":
        """Raise OSError if it can't be started."""
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        # Appending: what a killed predecessor said last is the most interesting part.
        with spec.log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(spec.environment),
                cwd=spec.working_dir,
                start_new_session=True,
            )
        return cls(process, guard)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        """Its return code, once it is gone."""
        return await self._process.wait()

    def release(self) -> None:
        """Kill whatever is left of its group: the process itself, or children it did not end."""
        signal_group(self.pid, signal.SIGKILL)
        self._guard.remove(self.pid)

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            signal_group(self.pid, number)


def signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def bound_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move a log that grew too large aside, in place of the one moved before.

    Copied and cut, not renamed: the process goes on writing to the file it has open. What it writes between
    the two steps is lost, which a log can bear.
    """
    try:
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)
    except FileNotFoundError:
        return


def last_lines(path: Path, count: int = 3) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][-count:]
