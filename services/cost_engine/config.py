"""The cost engine's settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuloom.kube.leadership import LeadershipConfig, leadership_group
from gpuloom.kube.settings import KubeConfig
from gpuloom.roster import ROSTER
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import (
    Address,
    boolean,
    choice,
    comma_list,
    existing_file,
    integer,
    port,
    seconds,
    text,
)
from gpuloom.runtime.settings import HttpConfig, LogConfig
from gpuloom.store.settings import StoreConfig
from services.cost_engine.core.intervals import DAY_NS
from services.cost_engine.core.objects import POOL_LABELS, SliceRule
from services.cost_engine.core.prices import BookSettings
from services.cost_engine.store.store import StoreSettings

GPU_SHARES = {"all": 1000, "typical": 880, "none": 0}
"""Presets, in thousandths of a node's price: all of it; what GPUs are of the price of common machines."""


def gpu_share(raw: str) -> int:
    """A preset, or percent."""
    name = raw.strip().lower()
    if name in GPU_SHARES:
        return GPU_SHARES[name]
    if not name.removesuffix("%").isdigit():
        raise ValueError(f"must be {', '.join(GPU_SHARES)} or a percentage, not {raw[:40]!r}")
    return integer(0, 100)(name.removesuffix("%")) * 10


@dataclass(frozen=True)
class PricesConfig:
    file: Path | None = setting(
        "GPULOOM_COST_PRICES_FILE",
        default=None,
        parse=existing_file,
        help="TOML file with prices of the operator, read again when it changes; they win over all others",
    )
    refresh_s: float = setting(
        "GPULOOM_COST_PRICE_REFRESH",
        default=3600.0,
        parse=seconds,
        help="How often prices are read from clouds",
    )
    aws_regions: tuple[str, ...] = setting(
        "GPULOOM_COST_AWS_REGIONS",
        default=(),
        parse=comma_list(text),
        help="Regions of which AWS is asked for prices and spot prices; none: AWS is not asked",
    )
    gcp_api_key: str | None = setting(
        "GPULOOM_COST_GCP_API_KEY",
        default=None,
        parse=text,
        secret=True,
        help="Key for Google's billing catalogue; none: Google is not asked",
    )
    gcp_regions: tuple[str, ...] = setting(
        "GPULOOM_COST_GCP_REGIONS", default=(), parse=comma_list(text), help="Regions of Google to price"
    )
    azure_regions: tuple[str, ...] = setting(
        "GPULOOM_COST_AZURE_REGIONS",
        default=(),
        parse=comma_list(text),
        help="Regions of which Azure is asked for retail prices; none: Azure is not asked",
    )
    spot_percent: int = setting(
        "GPULOOM_COST_SPOT_PERCENT",
        default=40,
        parse=integer(1, 100),
        help="What a spot price is taken to be of the on-demand price where none was ever known, in percent",
    )


@dataclass(frozen=True)
class AlertsConfig:
    alertmanager_url: str | None = setting(
        "GPULOOM_COST_ALERTMANAGER_URL", default=None, parse=text, help="Where Alertmanager is, if it is told"
    )
    slack_url: str | None = setting(
        "GPULOOM_COST_SLACK_URL",
        default=None,
        parse=text,
        secret=True,
        help="Webhook of Slack, or of what understands the same, for alerts without a URL of their own",
    )
    webhook_url: str | None = setting(
        "GPULOOM_COST_WEBHOOK_URL",
        default=None,
        parse=text,
        secret=True,
        help="Webhook that gets alerts as JSON",
    )
    smtp_address: str | None = setting(
        "GPULOOM_COST_SMTP_ADDRESS", default=None, parse=text, help="host:port of the mail server"
    )
    smtp_username: str | None = setting(
        "GPULOOM_COST_SMTP_USERNAME", default=None, parse=text, help="Who logs in there; not set: nobody does"
    )
    smtp_password: str = setting(
        "GPULOOM_COST_SMTP_PASSWORD", default="", parse=text, secret=True, help="The password of that user"
    )
    smtp_from: str = setting(
        "GPULOOM_COST_SMTP_FROM", default="gpuloom@localhost", parse=text, help="Sender of mails"
    )
    smtp_to: tuple[str, ...] = setting(
        "GPULOOM_COST_SMTP_TO",
        default=(),
        parse=comma_list(text),
        help="Recipients of mails that name none",
    )
    smtp_tls: bool = setting(
        "GPULOOM_COST_SMTP_TLS", default=True, parse=boolean, help="Whether mails go over STARTTLS only"
    )


@dataclass(frozen=True)
class ApiConfig:
    host: str = setting(
        "GPULOOM_COST_API_HOST",
        default="0.0.0.0",  # noqa: S104 - dashboards come from outside the pod
        parse=text,
        help="Address to serve the OpenCost-shaped API on",
    )
    port: int = setting(
        "GPULOOM_COST_API_PORT",
        default=ROSTER["cost_engine"].port("opencost").number,
        parse=port,
        help="Its port; HTTPS where there are certificates",
    )
    token_review: bool = setting(
        "GPULOOM_COST_API_TOKEN_REVIEW",
        default=True,
        parse=boolean,
        help="Whether callers must show a token that Kubernetes accepts",
    )


@dataclass(frozen=True)
class CostConfig:
    discovery_address: Address = peer_setting("discovery")
    compute_interval_s: float = setting(
        "GPULOOM_COST_COMPUTE_INTERVAL",
        default=60.0,
        parse=seconds,
        help="How often the costs of the present hour are computed anew",
    )
    raw_retention_days: int = setting(
        "GPULOOM_COST_RAW_RETENTION_DAYS",
        default=7,
        parse=integer(1, 3650),
        help="How long usage windows are kept; what they gave stays",
    )
    hourly_retention_days: int = setting(
        "GPULOOM_COST_HOURLY_RETENTION_DAYS",
        default=400,
        # The forecast of a budget's month begins with an hour of its first day.
        parse=integer(32, 36500),
        help="How long costs are kept by hour; by day they stay",
    )
    gpu_permille: int = setting(
        "GPULOOM_COST_GPU_SHARE",
        default=GPU_SHARES["all"],
        parse=gpu_share,
        help="How much of a node's price is for its GPUs: all, typical (88 %), none, or percent",
    )
    slice_rule: SliceRule = setting(
        "GPULOOM_COST_MIG_RULE",
        default=SliceRule.COMPUTE,
        parse=choice(*SliceRule),
        help="What a MIG slice counts: its part of the compute slices, or of the memory",
    )
    pool_labels: tuple[str, ...] = setting(
        "GPULOOM_COST_POOL_LABELS",
        default=POOL_LABELS,
        parse=comma_list(text),
        help="Node labels that name the node pool; the first that is there decides",
    )
    teams_file: Path | None = setting(
        "GPULOOM_COST_TEAMS_FILE",
        default=None,
        parse=existing_file,
        help="TOML file with rules that say which team pays, read again when it changes",
    )
    hours_per_month: int = setting(
        "GPULOOM_HOURS_PER_MONTH",
        default=720,
        parse=integer(672, 744),
        help="How many hours a month has in estimates; every output says which",
    )
    prices: PricesConfig = group(PricesConfig)
    alerts: AlertsConfig = group(AlertsConfig)
    api: ApiConfig = group(ApiConfig)
    store: StoreConfig = group(StoreConfig)
    leadership: LeadershipConfig = leadership_group("cost_engine")
    grpc: ServingConfig = grpc_group("cost_engine")
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def problems(self) -> Iterator[str]:
        if self.store.url is None:
            yield "GPULOOM_DATABASE_URL is needed"

    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            raw_retention_ns=self.raw_retention_days * DAY_NS,
            hourly_retention_ns=self.hourly_retention_days * DAY_NS,
            gpu_permille=self.gpu_permille,
            slice_rule=self.slice_rule,
            book=BookSettings(spot_permille=self.prices.spot_percent * 10),
        )
