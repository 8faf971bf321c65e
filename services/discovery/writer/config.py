"""The writer's settings."""

from dataclasses import dataclass

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import boolean, text


@dataclass(frozen=True)
class WriterConfig:
    writes: bool = setting(
        "GPULOOM_DISCOVERY_WRITES",
        default=True,
        parse=boolean,
        help="Whether this replica may be elected to write mode, resources, health and spot notices to nodes",
    )
    lease_namespace: str = setting(
        "GPULOOM_DISCOVERY_LEASE_NAMESPACE",
        default="gpuloom-system",
        parse=text,
        help="Namespace of the lease by which the writing replica is elected",
    )
    lease_name: str = setting(
        "GPULOOM_DISCOVERY_LEASE_NAME",
        default="gpuloom-discovery",
        parse=text,
        help="Name of that lease",
    )
