"""The autoscaler's settings."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuloom.clients.prometheus import PrometheusConfig
from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.kube.settings import KubeConfig
from gpuloom.model.money import NANO_PER_USD
from gpuloom.model.node import NodeMode
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.failpoints import FailpointsConfig, failpoints_group
from gpuloom.runtime.parsers import (
    Address,
    boolean,
    choice,
    comma_list,
    existing_file,
    integer,
    quoted,
    seconds,
    text,
)
from gpuloom.runtime.settings import HttpConfig, LogConfig
from gpuloom.store.settings import StoreConfig
from services.autoscaler.core.lifecycle.claims import Timeouts
from services.autoscaler.core.scaling.scale_down import DownSettings
from services.autoscaler.core.scaling.scale_up import Bounds
from services.autoscaler.inference.config import InferenceConfig, KedaConfig, MetricsApiConfig
from services.autoscaler.nodes.sweeper import AFTER_CLOUD_CALL


def pool_group(raw: str) -> tuple[str, str]:
    """`pool=group`."""
    pool, equals, name = raw.strip().partition("=")
    if not (pool and equals and name):
        raise ValueError(f"must be a list like pool=group,pool=group, not {quoted(raw)}")
    return pool, name


@dataclass(frozen=True)
class CloudsConfig:
    """A cloud is used if its first setting is there."""

    aws_region: str | None = setting(
        "GPULOOM_AUTOSCALER_AWS_REGION", default=None, parse=text, help="Region of the Auto Scaling groups"
    )
    aws_groups: tuple[tuple[str, str], ...] = setting(
        "GPULOOM_AUTOSCALER_AWS_GROUPS",
        default=(),
        parse=comma_list(pool_group),
        help="Auto Scaling group of each pool: pool=group,…",
    )
    aws_endpoint: str | None = setting(
        "GPULOOM_AUTOSCALER_AWS_ENDPOINT",
        default=None,
        parse=text,
        help="Where AWS is; by default AWS itself",
    )
    gcp_project: str | None = setting(
        "GPULOOM_AUTOSCALER_GCP_PROJECT", default=None, parse=text, help="Project of the instance groups"
    )
    gcp_region: str = setting(
        "GPULOOM_AUTOSCALER_GCP_REGION", default="", parse=text, help="Region of their zones"
    )
    gcp_groups: tuple[tuple[str, str], ...] = setting(
        "GPULOOM_AUTOSCALER_GCP_GROUPS",
        default=(),
        parse=comma_list(pool_group),
        help="Managed instance group of each pool: pool=group,…",
    )
    azure_subscription: str | None = setting(
        "GPULOOM_AUTOSCALER_AZURE_SUBSCRIPTION",
        default=None,
        parse=text,
        help="Subscription of the scale sets",
    )
    azure_resource_group: str = setting(
        "GPULOOM_AUTOSCALER_AZURE_RESOURCE_GROUP", default="", parse=text, help="Their resource group"
    )
    azure_groups: tuple[tuple[str, str], ...] = setting(
        "GPULOOM_AUTOSCALER_AZURE_GROUPS",
        default=(),
        parse=comma_list(pool_group),
        help="Virtual machine scale set of each pool: pool=set,…",
    )
    simulated_url: str | None = setting(
        "GPULOOM_AUTOSCALER_SIMULATED_CLOUD", default=None, parse=text, help="URL of a simulated cloud"
    )
    prices_file: Path | None = setting(
        "GPULOOM_AUTOSCALER_PRICES_FILE",
        default=None,
        parse=existing_file,
        help="JSON object of prices in USD per hour by instanceType/capacityType or instanceType/zone/"
        "capacityType, for what the cloud itself does not tell",
    )

    def problems(self) -> Iterable[str]:
        if self.gcp_project is not None and not self.gcp_region:
            yield "GPULOOM_AUTOSCALER_GCP_PROJECT needs GPULOOM_AUTOSCALER_GCP_REGION"
        if self.azure_subscription is not None and not self.azure_resource_group:
            yield "GPULOOM_AUTOSCALER_AZURE_SUBSCRIPTION needs GPULOOM_AUTOSCALER_AZURE_RESOURCE_GROUP"
        for cloud, given in (
            ("AWS", self.aws_groups),
            ("GCP", self.gcp_groups),
            ("AZURE", self.azure_groups),
        ):
            for place, what in enumerate(("pool", "group")):
                counts = Counter(pair[place] for pair in given)
                twice = sorted(name for name, count in counts.items() if count > 1)
                if twice:
                    setting_name = f"GPULOOM_AUTOSCALER_{cloud}_GROUPS"
                    yield f"{setting_name} names {what} {', '.join(twice)} twice; each pool has its own"


@dataclass(frozen=True)
class PaceConfig:
    interval_s: float = setting(
        "GPULOOM_AUTOSCALER_INTERVAL", default=5.0, parse=seconds, help="How often everything is looked at"
    )
    launch_timeout_s: float = setting(
        "GPULOOM_AUTOSCALER_LAUNCH_TIMEOUT",
        default=300.0,
        parse=seconds,
        help="A request without a machine is given up after this",
    )
    register_timeout_s: float = setting(
        "GPULOOM_AUTOSCALER_REGISTER_TIMEOUT",
        default=900.0,
        parse=seconds,
        help="A machine without a node is given up after this",
    )
    gpu_timeout_s: float = setting(
        "GPULOOM_AUTOSCALER_GPU_TIMEOUT",
        default=600.0,
        parse=seconds,
        help="A node without its GPUs is replaced after this",
    )
    idle_window_s: float = setting(
        "GPULOOM_AUTOSCALER_IDLE_WINDOW",
        default=600.0,
        parse=seconds,
        help="How long a node must be idle or little used before it may go",
    )
    minimum_age_s: float = setting(
        "GPULOOM_AUTOSCALER_MINIMUM_AGE",
        default=600.0,
        parse=seconds,
        help="How long a node stays at least after its GPUs were ready",
    )
    nodes_per_hour: int = setting(
        "GPULOOM_AUTOSCALER_NODES_PER_HOUR",
        default=10,
        parse=integer(0, 10_000),
        help="The most nodes of a policy that are drained within an hour because they are little used",
    )

    def timeouts(self) -> Timeouts:
        return Timeouts(self.launch_timeout_s, self.register_timeout_s, self.gpu_timeout_s)

    def down(self) -> DownSettings:
        return DownSettings(self.idle_window_s, self.minimum_age_s, self.nodes_per_hour)


@dataclass(frozen=True)
class BoundsConfig:
    on_demand_floor: int = setting(
        "GPULOOM_AUTOSCALER_ON_DEMAND_FLOOR",
        default=1,
        parse=integer(0, 10_000),
        help="Nodes of a policy that are not on spot, once it has any and uses on-demand at all",
    )
    warm_usd_per_hour: int = setting(
        "GPULOOM_AUTOSCALER_PREWARM_USD_PER_HOUR",
        default=100,
        parse=integer(0, 1_000_000),
        help="The most that nodes of a policy may cost which only a forecast wants",
    )

    def values(self) -> Bounds:
        return Bounds(self.on_demand_floor, self.warm_usd_per_hour * NANO_PER_USD)


@dataclass(frozen=True)
class AutoscalerConfig:
    discovery_address: Address = peer_setting("discovery")
    extender_address: Address = peer_setting("scheduler_extender")
    cost_address: Address = peer_setting("cost_engine")
    node_mode: NodeMode = setting(
        "GPULOOM_AUTOSCALER_NODE_MODE",
        default=NodeMode.GPULOOM,
        parse=choice(NodeMode.GPULOOM, NodeMode.NVIDIA),
        help="Who gives out the GPUs of new nodes: gpuloom, or nvidia (its device plugin)",
    )
    dry_run: bool = setting(
        "GPULOOM_AUTOSCALER_DRY_RUN",
        default=False,
        parse=boolean,
        help="Only say what would be bought and drained, for every policy",
    )
    consolidates: bool = setting(
        "GPULOOM_AUTOSCALER_CONSOLIDATION",
        default=True,
        parse=boolean,
        help="Whether nodes are replaced by cheaper ones where the saving outweighs the move",
    )
    hours_a_month: int = setting(
        "GPULOOM_HOURS_A_MONTH",
        default=720,
        parse=integer(1, 744),
        help="Hours of a month in estimates of cost",
    )
    time_zone: str = setting(
        "GPULOOM_AUTOSCALER_TIME_ZONE",
        default="UTC",
        parse=text,
        help="Time zone of days and hours in forecasts, such as Europe/Berlin",
    )
    pace: PaceConfig = group(PaceConfig)
    bounds: BoundsConfig = group(BoundsConfig)
    clouds: CloudsConfig = group(CloudsConfig)
    prometheus: PrometheusConfig = group(PrometheusConfig)
    inference: InferenceConfig = group(InferenceConfig)
    metrics_api: MetricsApiConfig = group(MetricsApiConfig)
    keda: KedaConfig = group(KedaConfig)
    store: StoreConfig = group(StoreConfig)
    leadership: LeadershipConfig = leadership_group("autoscaler")
    failpoints: FailpointsConfig = failpoints_group(AFTER_CLOUD_CALL)
    grpc: ServingConfig = grpc_group("autoscaler")
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
