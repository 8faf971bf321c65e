"""The optimizer's settings."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuloom.kube.settings import KubeConfig
from gpuloom.roster import ROSTER
from gpuloom.rpc.serving import ServingConfig, grpc_group, peer_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import Address, address, boolean, integer, seconds, usd
from gpuloom.runtime.settings import HttpConfig, LogConfig
from gpuloom.store.settings import StoreConfig


def percent(raw: str) -> float:
    """`50` or `50%`."""
    return integer(1, 99)(raw.strip().removesuffix("%")) / 100


@dataclass(frozen=True)
class WasteConfig:
    ratio: float = setting(
        "GPULOOM_OPTIMIZER_WASTE_UTILIZATION",
        default=0.5,
        parse=percent,
        help="A pod that uses less of its GPU wastes it, in percent",
    )
    after_s: float = setting(
        "GPULOOM_OPTIMIZER_WASTE_AFTER",
        default=300.0,
        parse=seconds,
        help="For how much of the time that is looked at it must be below that",
    )
    window_s: float = setting(
        "GPULOOM_OPTIMIZER_WASTE_WINDOW", default=600.0, parse=seconds, help="The time that is looked at"
    )
    interval_s: float = setting(
        "GPULOOM_OPTIMIZER_WASTE_INTERVAL", default=30.0, parse=seconds, help="How often pods are judged"
    )

    def problems(self) -> Iterator[str]:
        if self.after_s >= self.window_s:
            yield "GPULOOM_OPTIMIZER_WASTE_AFTER must be below GPULOOM_OPTIMIZER_WASTE_WINDOW"
        if self.window_s > 900:
            yield "GPULOOM_OPTIMIZER_WASTE_WINDOW must be at most 15m: windows are remembered for so long"


@dataclass(frozen=True)
class OptimizerConfig:
    discovery: Address = peer_setting("discovery")
    cost: Address | None = setting(
        ROSTER["cost_engine"].address_setting,
        default=None,
        parse=address,
        help="host:port of cost, which knows prices; else see GPULOOM_OPTIMIZER_USD_PER_GPU_HOUR",
    )
    retention_s: float = setting(
        "GPULOOM_OPTIMIZER_RETENTION",
        default=30 * 86_400.0,
        parse=seconds,
        help="How long profiles of workloads are kept after their last run",
    )
    train: bool = setting(
        "GPULOOM_OPTIMIZER_TRAIN",
        default=True,
        parse=boolean,
        help="Whether a model is trained, in a process of its own of about 200 MiB; else rules decide",
    )
    retrain_interval_s: float = setting(
        "GPULOOM_OPTIMIZER_RETRAIN_INTERVAL",
        default=86_400.0,
        parse=seconds,
        help="How often the model is trained anew, if labelled runs have ended meanwhile",
    )
    seed: int = setting(
        "GPULOOM_OPTIMIZER_SEED",
        default=1,
        parse=integer(0, 2**31),
        help="Seed of the made-up runs that the model is trained on",
    )
    usd_per_gpu_hour: float | None = setting(
        "GPULOOM_OPTIMIZER_USD_PER_GPU_HOUR",
        default=None,
        parse=usd,
        help="What a GPU costs an hour where no price is known; without it savings there are not known",
    )
    hours_per_month: int = setting(
        "GPULOOM_HOURS_PER_MONTH", default=720, parse=integer(1, 744), help="How long a month is, in hours"
    )
    waste: WasteConfig = group(WasteConfig)
    store: StoreConfig = group(StoreConfig)
    grpc: ServingConfig = grpc_group("optimizer")
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def problems(self) -> Iterator[str]:
        if self.store.url is None:
            yield "GPULOOM_DATABASE_URL is required: sqlite:///file.db or postgresql://user@host/name"
