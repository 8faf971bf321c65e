"""The writer's settings."""

from dataclasses import dataclass

from gpuloom.kube.leader import LeaderSettings
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import boolean, integer, text


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
        help="Name of that lease; discovery's Role names it, too",
    )
    lease_duration_s: int = setting(
        "GPULOOM_DISCOVERY_LEASE_DURATION",
        default=6,
        parse=integer(2, 60),
        help="Seconds after which a silent writing replica is replaced",
    )

    def lease_settings(self) -> LeaderSettings:
        duration_s = self.lease_duration_s
        return LeaderSettings(
            lease_duration_s=duration_s,
            renew_deadline_s=duration_s * 2 / 3,
            retry_period_s=duration_s / 6,
            request_timeout_s=duration_s / 3,
            margin_s=duration_s / 12,
        )
