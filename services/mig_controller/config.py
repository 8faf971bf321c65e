"""The controller's settings."""

from dataclasses import dataclass

from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.kube.settings import KubeConfig
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.failpoints import FailpointsConfig, failpoints_group
from gpuloom.runtime.parsers import Address, integer, seconds
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.mig_controller.core.plan import Options
from services.mig_controller.core.strategy import DEMAND, Strategy, parse_strategy
from services.mig_controller.transactions import FAILPOINTS


@dataclass(frozen=True)
class PlanConfig:
    interval_s: float = setting(
        "GPULOOM_MIG_INTERVAL", default=2.0, parse=seconds, help="How often the leader looks and decides"
    )
    delay_s: float = setting(
        "GPULOOM_MIG_DELAY",
        default=2.0,
        parse=seconds,
        help="How long a pod waits for a free slice before one is made for it",
    )
    idle_ttl_s: float = setting(
        "GPULOOM_MIG_IDLE_TTL",
        default=300.0,
        parse=seconds,
        help="How long nobody has had a slice before it may be cut anew",
    )
    keep_whole: int = setting(
        "GPULOOM_MIG_KEEP_WHOLE",
        default=0,
        parse=integer(0, 100_000),
        help="How many unused GPUs of the cluster are kept whole",
    )
    most_changes: int = setting(
        "GPULOOM_MIG_MOST_CHANGES",
        default=8,
        parse=integer(1, 256),
        help="Changes begun in one round at most",
    )
    strategy: Strategy = setting(
        "GPULOOM_MIG_STRATEGY",
        default=DEMAND,
        parse=parse_strategy,
        help="With what a GPU that is cut is filled up: demand (nothing), inference-optimized "
        "(70 % 1g, 20 % 2g, 10 % 3g), or shares such as 1g=50,2g=50",
    )

    def options(self) -> Options:
        return Options(self.delay_s, self.idle_ttl_s, self.keep_whole, self.most_changes, self.strategy)


@dataclass(frozen=True)
class MigConfig:
    discovery_address: Address = peer_setting("discovery")
    extender_address: Address = peer_setting("scheduler_extender")
    plan: PlanConfig = group(PlanConfig)
    facts_ttl_s: float = setting(
        "GPULOOM_MIG_FACTS_TTL",
        default=30.0,
        parse=seconds,
        help="Nothing is decided when discovery has been silent for longer",
    )
    leadership: LeadershipConfig = leadership_group("mig_controller")
    failpoints: FailpointsConfig = failpoints_group(*FAILPOINTS)
    grpc: ServingConfig = grpc_group("mig_controller")
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
