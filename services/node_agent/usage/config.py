"""The settings of usage windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import integer, seconds, text

_LEAST_WINDOW_S = 1.0
_MOST_WINDOW_S = 3600.0


@dataclass(frozen=True)
class UsageConfig:
    folder: Path | None = setting(
        "GPULOOM_AGENT_USAGE_DIR",
        default=None,
        parse=lambda raw: Path(text(raw)),
        help="Folder of the host for usage windows that were not read yet; by default `usage` in "
        "GPULOOM_AGENT_STATE_DIR or in the simulated machine's directory",
    )
    window_s: float = setting(
        "GPULOOM_AGENT_USAGE_WINDOW",
        default=60.0,
        parse=seconds,
        help="Length of a usage window; a holder that comes or goes ends one earlier",
    )
    keep_s: float = setting(
        "GPULOOM_AGENT_USAGE_KEEP", default=86_400.0, parse=seconds, help="How much time of windows is kept"
    )
    max_mib: int = setting(
        "GPULOOM_AGENT_USAGE_MAX_MIB",
        default=64,
        parse=integer(1, 4096),
        help="Most disk space of usage windows, MiB; the oldest go first",
    )

    def problems(self) -> Iterator[str]:
        if not _LEAST_WINDOW_S <= self.window_s <= _MOST_WINDOW_S:
            yield f"GPULOOM_AGENT_USAGE_WINDOW must be from 1s to 1h, not {self.window_s:g}s"
        elif self.keep_s < self.window_s:
            yield "GPULOOM_AGENT_USAGE_KEEP must be at least one window"
