"""The writer's settings."""

from dataclasses import dataclass

from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import boolean


@dataclass(frozen=True)
class WriterConfig:
    writes: bool = setting(
        "GPULOOM_DISCOVERY_WRITES",
        default=True,
        parse=boolean,
        help="Whether this replica may be elected to write mode, resources, health and spot notices to nodes",
    )
    # Always elected: a second discovery on the same cluster is nothing unusual, wherever it runs.
    leadership: LeadershipConfig = leadership_group("discovery", election=True)
