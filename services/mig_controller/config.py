"""The controller's settings."""

import re
from dataclasses import dataclass

from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.kube.settings import KubeConfig
from gpuloom.placement.keeping import Enforcement
from gpuloom.roster import ROSTER
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.failpoints import FailpointsConfig, failpoints_group
from gpuloom.runtime.parsers import Address, address, boolean, choice, integer, seconds, text, usd
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.mig_controller.core.plan import Options
from services.mig_controller.core.strategy import DEMAND, Strategy, parse_strategy
from services.mig_controller.defragmenter import DefragmentOptions
from services.mig_controller.steering import SteeringOptions
from services.mig_controller.transactions import FAILPOINTS


def _layout_format(raw: str) -> str:
    found = text(raw)
    rest = found.replace("{profile}", "", 1)
    if rest == found or not re.fullmatch(r"[A-Za-z0-9._-]*", rest):
        raise ValueError("must hold {profile} and be the name of a layout otherwise, as in all-{profile}")
    return found


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

    defragment: bool = setting(
        "GPULOOM_MIG_DEFRAGMENT",
        default=False,
        parse=boolean,
        help="Whether pods are moved without anybody asking, for one of at least their priority that has "
        "waited long, and only if each of them has a place to go",
    )
    defragment_after_s: float = setting(
        "GPULOOM_MIG_DEFRAGMENT_AFTER",
        default=300.0,
        parse=seconds,
        help="How long a pod has waited for a slice before others are moved for it",
    )

    def options(self) -> Options:
        return Options(self.delay_s, self.idle_ttl_s, self.keep_whole, self.most_changes, self.strategy)

    def defragmenting(self) -> DefragmentOptions:
        return DefragmentOptions(self.defragment, self.defragment_after_s)


@dataclass(frozen=True)
class SteeringConfig:
    enabled: bool = setting(
        "GPULOOM_MIG_STEER",
        default=False,
        parse=boolean,
        help="Whether the label nvidia.com/mig.config is set on idle nodes of mode nvidia to the layout that "
        "waiting pods ask for; needs NVIDIA's MIG manager there",
    )
    format_: str = setting(
        "GPULOOM_MIG_STEER_FORMAT",
        default="all-{profile}",
        parse=_layout_format,
        help="Name of the MIG manager's layout that cuts all GPUs into one profile",
    )
    off: str = setting(
        "GPULOOM_MIG_STEER_OFF",
        default="all-disabled",
        parse=text,
        help="Name of the MIG manager's layout that cuts no GPU",
    )
    delay_s: float = setting(
        "GPULOOM_MIG_STEER_DELAY",
        default=30.0,
        parse=seconds,
        help="How long pods have asked for a profile before a node is steered to it",
    )
    pause_s: float = setting(
        "GPULOOM_MIG_STEER_PAUSE",
        default=600.0,
        parse=seconds,
        help="How long a node is left alone after it was steered, or could not be",
    )

    def options(self) -> SteeringOptions:
        return SteeringOptions(self.enabled, self.format_, self.off, self.delay_s, self.pause_s)


@dataclass(frozen=True)
class MigConfig:
    discovery_address: Address = peer_setting("discovery")
    cost_engine_address: Address | None = setting(
        ROSTER["cost_engine"].address_setting,
        default=None,
        parse=address,
        help="host:port of cost, which knows prices; else see GPULOOM_MIG_USD_PER_GPU_HOUR",
    )
    extender_address: Address = peer_setting("scheduler_extender")
    plan: PlanConfig = group(PlanConfig)
    steering: SteeringConfig = group(SteeringConfig)
    usd_per_gpu_hour: float | None = setting(
        "GPULOOM_MIG_USD_PER_GPU_HOUR",
        default=None,
        parse=usd,
        help="What a GPU costs an hour where no price is known; else what a move costs is not known",
    )
    enforcement: Enforcement = setting(
        "GPULOOM_ENFORCEMENT",
        default=Enforcement.MPS,
        parse=choice(*Enforcement),
        help="For pods with a share of a GPU with an MPS daemon that do not say gpuloom.dev/enforcement: mps "
        "(they are limited) or none; the same for node agents, extender and MIG controller",
    )
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
