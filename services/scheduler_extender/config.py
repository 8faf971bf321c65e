"""The extender's settings."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.kube.settings import KubeConfig
from gpuloom.placement.keeping import Enforcement
from gpuloom.placement.points import MAX_ADVICE
from gpuloom.placement.score import ScoreWeights
from gpuloom.roster import ROSTER
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.failpoints import FailpointsConfig, failpoints_group
from gpuloom.runtime.parsers import (
    Address,
    address,
    boolean,
    choice,
    comma_list,
    integer,
    port,
    seconds,
    text,
)
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.scheduler_extender.adapters.kubernetes import BIND_BEFORE_POST
from services.scheduler_extender.leadership.takeover import Patience
from services.scheduler_extender.verbs.binding import LEAST_TIMEOUT_S

_WEIGHT = integer(0, 1000)
SCHEDULER_TIMEOUT_S = 5.0
"""httpTimeout of the extender in the shipped kube-scheduler configuration, and kube-scheduler's default."""


def _policies(raw: str) -> tuple[str, ...]:
    return () if raw.strip() == "none" else comma_list(text)(raw)


@dataclass(frozen=True)
class WeightsConfig:
    topology: int = setting(
        "GPULOOM_EXTENDER_WEIGHT_TOPOLOGY", default=40, parse=_WEIGHT, help="Weight of the topology score"
    )
    resource: int = setting(
        "GPULOOM_EXTENDER_WEIGHT_RESOURCE", default=35, parse=_WEIGHT, help="Weight of the packing score"
    )
    balance: int = setting(
        "GPULOOM_EXTENDER_WEIGHT_BALANCE", default=25, parse=_WEIGHT, help="Weight of the CPU/memory balance"
    )

    def problems(self) -> Iterable[str]:
        if self.topology + self.resource + self.balance == 0:
            yield "one of the GPULOOM_EXTENDER_WEIGHT_… settings must be above 0"

    def weights(self) -> ScoreWeights:
        return ScoreWeights(self.topology, self.resource, self.balance)


@dataclass(frozen=True)
class HintConfig:
    address: Address | None = setting(
        ROSTER["optimizer"].address_setting,
        default=None,
        parse=address,
        help="host:port of the optimizer, asked for a hint when a pod appears; without it there is none",
    )
    weight: int = setting(
        "GPULOOM_EXTENDER_WEIGHT_HINT",
        default=5,
        parse=integer(0, int(MAX_ADVICE)),
        help="Points of 100 by which a hint moves a node at most; 0: hints are not asked for",
    )


@dataclass(frozen=True)
class PlanningConfig:
    preemption: str = setting(
        "GPULOOM_EXTENDER_PREEMPTION",
        default="on",
        parse=choice("on", "dry-run", "off"),
        help="Whether pods of lower priority are evicted for one that only a GPU is missing for; dry-run: "
        "explain and an Event show who would be",
    )
    min_run_s: float = setting(
        "GPULOOM_EXTENDER_PREEMPTION_MIN_RUN",
        default=20.0,
        parse=seconds,
        help="How long a pod runs at least before it is evicted for another",
    )


@dataclass(frozen=True)
class ExtenderConfig:
    discovery_address: Address = peer_setting("discovery")
    cost_address: Address | None = setting(
        ROSTER["cost_engine"].address_setting,
        default=None,
        parse=address,
        help="host:port of cost, whose budgets may stop new pods; not set: no budget does",
    )
    hint: HintConfig = group(HintConfig)
    enforcement: Enforcement = setting(
        "GPULOOM_ENFORCEMENT",
        default=Enforcement.MPS,
        parse=choice(*Enforcement),
        help="For pods with a share of a GPU with an MPS daemon that do not say gpuloom.dev/enforcement: mps "
        "(they are limited) or none; the same for node agents, extender and MIG controller",
    )
    https_host: str = setting(
        "GPULOOM_EXTENDER_HOST",
        default="0.0.0.0",  # noqa: S104 - kube-scheduler comes from outside the pod
        parse=text,
        help="Address to serve kube-scheduler on",
    )
    https_port: int = setting(
        "GPULOOM_EXTENDER_PORT",
        default=ROSTER["scheduler_extender"].port("https").number,
        parse=port,
        help="Port to serve kube-scheduler on (HTTPS)",
    )
    client_certificate: bool = setting(
        "GPULOOM_EXTENDER_CLIENT_CERTIFICATE",
        default=True,
        parse=boolean,
        help="Serve only callers that show a certificate of identity kube_scheduler",
    )
    shortlist: int = setting(
        "GPULOOM_EXTENDER_SHORTLIST",
        default=8,
        parse=integer(1, 10_000),
        help="How many of the best nodes a filter answers at most to a pod that was tried before",
    )
    first_shortlist: int = setting(
        "GPULOOM_EXTENDER_FIRST_SHORTLIST",
        default=1,
        parse=integer(1, 10_000),
        help="The same at a pod's first try; raise it where kube-scheduler's own scores are to count "
        "(a low weight), or where other extenders come after this one",
    )
    scheduler_names: tuple[str, ...] = setting(
        "GPULOOM_EXTENDER_SCHEDULER_NAMES",
        default=(),
        parse=comma_list(text),
        help="schedulerName of the pods that this extender is asked about, so that explain can tell who asks "
        "elsewhere; names that it was asked about are known anyway",
    )
    bind_timeout_s: float = setting(
        "GPULOOM_EXTENDER_BIND_TIMEOUT",
        default=4.0,
        parse=seconds,
        help="Longest wait for the API server to accept a Binding; keep it below kube-scheduler's 5s",
    )
    facts_ttl_s: float = setting(
        "GPULOOM_EXTENDER_FACTS_TTL",
        default=30.0,
        parse=seconds,
        help="Device facts are not used when discovery has been silent for longer",
    )
    agent_ttl_s: float = setting(
        "GPULOOM_DISCOVERY_AGENT_TTL",
        default=30.0,
        parse=seconds,
        help="What discovery is set to; only checked against GPULOOM_EXTENDER_SETTLE",
    )
    settle_s: float = setting(
        "GPULOOM_EXTENDER_SETTLE",
        default=90.0,
        parse=seconds,
        help="How long a vanished pod that its node never showed keeps its devices; "
        "longer than discovery's and this service's facts may be old together",
    )
    admission_policies: tuple[str, ...] = setting(
        "GPULOOM_EXTENDER_ADMISSION_POLICIES",
        default=("gpuloom-allocation-annotations", "gpuloom-runtime-classes"),
        parse=_policies,
        help="Names of the admission policies that should be in force, and of their bindings: the leader "
        "looks them up and says if one is missing; the word none stands for no policy",
    )
    weights: WeightsConfig = group(WeightsConfig)
    planning: PlanningConfig = group(PlanningConfig)
    leadership: LeadershipConfig = leadership_group("scheduler_extender")
    failpoints: FailpointsConfig = failpoints_group(BIND_BEFORE_POST)
    grpc: ServingConfig = grpc_group("scheduler_extender")
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def problems(self) -> Iterable[str]:
        """Safety rests on how these relate, so a value that looks harmless alone is refused."""
        if self.bind_timeout_s >= SCHEDULER_TIMEOUT_S:
            yield (
                f"GPULOOM_EXTENDER_BIND_TIMEOUT must be below the {SCHEDULER_TIMEOUT_S:g}s after which "
                f"kube-scheduler gives a call up, not {self.bind_timeout_s:g}s"
            )
        if self.bind_timeout_s < LEAST_TIMEOUT_S:
            yield (
                f"GPULOOM_EXTENDER_BIND_TIMEOUT must be at least {LEAST_TIMEOUT_S:g}s: with less left no "
                f"Binding is sent"
            )
        least_s = self.facts_ttl_s + self.agent_ttl_s
        if self.settle_s <= least_s:
            yield (
                f"GPULOOM_EXTENDER_SETTLE must be above {least_s:g}s, not {self.settle_s:g}s: facts may be "
                f"GPULOOM_EXTENDER_FACTS_TTL ({self.facts_ttl_s:g}s) old here and "
                f"GPULOOM_DISCOVERY_AGENT_TTL ({self.agent_ttl_s:g}s) in discovery, and a pod "
                "that started meanwhile is not seen before"
            )

    def patience(self) -> Patience:
        """An earlier leader believes in its lease for at most its duration, and its last Binding is given up
        by the API server within its timeout after that."""
        return Patience(refused_s=self.leadership.lease_duration_s + self.bind_timeout_s)
