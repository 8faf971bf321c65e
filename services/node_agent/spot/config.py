"""The settings of the spot watcher."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import choice, quoted, seconds, text
from services.node_agent.spot.core.clouds import SpotWatch

# All three clouds answer here.
METADATA_URL = "http://169.254.169.254"
_SHORTEST_INTERVAL_S = 1.0
# GCP and Azure give 30 s notice; asking less often than this would waste most of it.
_LONGEST_INTERVAL_S = 15.0


def _http_url(raw: str) -> str:
    url = text(raw)
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or parts.username is not None or not url.isprintable():
        raise ValueError(f"must be a URL such as {METADATA_URL}, not {quoted(raw)}")
    return url


@dataclass(frozen=True)
class SpotConfig:
    watch: SpotWatch = setting(
        "GPULOOM_AGENT_SPOT",
        default=SpotWatch.AUTO,
        parse=choice(*SpotWatch),
        help="Whose spot notices are watched: aws, gcp, azure, off, or auto (by the node's providerID)",
    )
    interval_s: float = setting(
        "GPULOOM_AGENT_SPOT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="How often the cloud is asked for a notice",
    )
    metadata_url: str = setting(
        "GPULOOM_AGENT_METADATA_URL",
        default=METADATA_URL,
        parse=_http_url,
        help="Where the machine's metadata service is",
    )

    def problems(self) -> Iterator[str]:
        if not _SHORTEST_INTERVAL_S <= self.interval_s <= _LONGEST_INTERVAL_S:
            yield (
                f"GPULOOM_AGENT_SPOT_INTERVAL must be from {_SHORTEST_INTERVAL_S:g}s to "
                f"{_LONGEST_INTERVAL_S:g}s, not {self.interval_s:g}s"
            )
