"""What a process has used, by /proc: processor time and memory. The parsing is pure."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_RESET_PEAK = "5"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """`cpu_s` during the burst; the peak since the burst began or, for a new process, since its start."""

    cpu_s: float
    peak_rss_mib: float


class ProcessMeter:
    """Measures processes by name from `begin` to `end`."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self._began_s: dict[str, float] = {}

    def begin(self) -> None:
        for name, pid in self.pids.items():
            _reset_peak(pid)
            self._began_s[name] = _cpu_s(pid)

    def end(self) -> dict[str, ProcessUse]:
        return {
            name: ProcessUse(_cpu_s(pid) - self._began_s[name], _peak_rss_mib(pid))
            for name, pid in self.pids.items()
            if name in self._began_s
        }


def parse_cpu_s(stat: str, ticks_per_s: int) -> float:
    """User and system time of /proc/PID/stat, whose second field may hold spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks_per_s


def parse_peak_rss_mib(status: str) -> float:
    """0 for a process that has no memory any more."""
    found = _PEAK.search(status)
    return int(found[1]) / 1024 if found else 0.0


def find_process(argument: str) -> int | None:
    """The process with that command line argument, if there is exactly one."""
    wanted = argument.encode()
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if wanted in _arguments(path)]
    return int(found[0].parent.name) if len(found) == 1 else None


def _arguments(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    return parse_cpu_s(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"), _TICKS_PER_S)


def _peak_rss_mib(pid: int) -> float:
    return parse_peak_rss_mib(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))


def _reset_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, encoding="utf-8")
    except OSError:
        # Some kernels don't offer it; the peak is then since the start of the process.
        return
