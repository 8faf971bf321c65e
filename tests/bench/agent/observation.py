"""What is seen of an agent from outside, and what it says of itself. The parsing is pure."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gpuloom.errors import UnavailableError
from tests.bench.processes import parse_peak_rss_mib

_RSS = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)
_YARDSTICK_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Memory:
    rss_mib: float
    peak_rss_mib: float


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """Of the agent's own metrics: its looks, and how often the text for scrapes was written."""

    looks: int
    troubled_looks: int
    look_s: float
    written: int

    def since(self, earlier: "OwnFigures") -> "OwnFigures":
        return OwnFigures(
            self.looks - earlier.looks,
            self.troubled_looks - earlier.troubled_looks,
            self.look_s - earlier.look_s,
            self.written - earlier.written,
        )


def cpu_s(pid: int) -> float:
    """Of all its threads, by the process's own clock: /proc tells hundredths of a second only.

    Raise UnavailableError if it has ended.
    """
    try:
        # How Linux numbers the clock of another process; see clock_getcpuclockid(3).
        return time.clock_gettime((~pid << 3) | 2)
    except OSError as error:
        raise UnavailableError(f"process {pid} has ended: {error.strerror}") from error


def memory(pid: int) -> Memory:
    """Raise UnavailableError if it has ended."""
    try:
        return parse_memory(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    except OSError as error:
        raise UnavailableError(f"process {pid} has ended: {error.strerror}") from error


def parse_memory(status: str) -> Memory:
    """0 for a process that has no memory any more."""
    found = _RSS.search(status)
    return Memory(int(found[1]) / 1024 if found else 0.0, parse_peak_rss_mib(status))


def parse_own_figures(text: str) -> OwnFigures:
    """From the text of the service's own metrics endpoint."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    of = {sample.name: sample.value for sample in samples if not sample.labels}
    troubled = sum(
        sample.value
        for sample in samples
        if sample.name == "gpuloom_node_agent_samples_total" and sample.labels["problem"] != "none"
    )
    return OwnFigures(
        looks=int(of["gpuloom_node_agent_sample_duration_seconds_count"]),
        troubled_looks=int(troubled),
        look_s=of["gpuloom_node_agent_sample_duration_seconds_sum"],
        written=int(of["gpuloom_node_agent_exposition_duration_seconds_count"]),
    )


def yardstick_s() -> float:
    """Processor time of a fixed piece of Python, to tell a slow machine from a slow agent."""
    began_s = time.thread_time()
    kept: dict[int, str] = {}
    for step in range(_YARDSTICK_STEPS):
        kept[step % 997] = f"{step}"
    return time.thread_time() - began_s
