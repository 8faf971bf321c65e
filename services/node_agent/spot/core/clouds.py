"""Which cloud's metadata service is asked, if any. Pure.

Decided by what the node says of itself, so that nothing is ever asked on bare metal or in a simulated
cluster, where another's service may answer at the same address.
"""

from dataclasses import dataclass
from enum import StrEnum


class Cloud(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"


class SpotWatch(StrEnum):
    """What an operator asks for."""

    AUTO = "auto"
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Unwatched:
    reason: str


_ASKED_FOR = {SpotWatch.AWS: Cloud.AWS, SpotWatch.GCP: Cloud.GCP, SpotWatch.AZURE: Cloud.AZURE}
_SCHEMES = {"aws": Cloud.AWS, "gce": Cloud.GCP, "azure": Cloud.AZURE}
_LONGEST_SCHEME = 40


def choose_cloud(watch: SpotWatch, provider_id: str | None) -> Cloud | Unwatched:
    """`provider_id` is the node's, empty if it has none (yet), None while the node is not known."""
    if watch is SpotWatch.OFF:
        return Unwatched("switched off (GPULOOM_AGENT_SPOT)")
    if watch in _ASKED_FOR:
        return _ASKED_FOR[watch]
    if provider_id is None:
        return Unwatched("the node is not known yet")
    if not provider_id:
        return Unwatched("the node has no providerID")
    scheme, separator, _ = provider_id.partition("://")
    if separator and scheme in _SCHEMES:
        return _SCHEMES[scheme]
    return Unwatched(f"the node's provider is {scheme[:_LONGEST_SCHEME]!r}, not aws://, gce:// or azure://")
