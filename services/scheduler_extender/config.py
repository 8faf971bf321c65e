"""The extender's settings."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.kube.settings import KubeConfig
from gpuloom.placement.score import ScoreWeights
from gpuloom.rpc.settings import TlsConfig, grpc_host_setting
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.parsers import Address, address, boolean, integer, port, seconds, text
from gpuloom.runtime.settings import HttpConfig, LogConfig

_WEIGHT = integer(0, 1000)


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
class ExtenderConfig:
    discovery_address: Address = setting(
        "GPULOOM_DISCOVERY_ADDRESS", default=REQUIRED, parse=address, help="host:port of discovery"
    )
    https_host: str = setting(
        "GPULOOM_EXTENDER_HOST",
        default="0.0.0.0",  # noqa: S104 - kube-scheduler comes from outside the pod
        parse=text,
        help="Address to serve kube-scheduler on",
    )
    https_port: int = setting(
        "GPULOOM_EXTENDER_PORT", default=8443, parse=port, help="Port to serve kube-scheduler on (HTTPS)"
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
        help="How many of the best nodes a filter answers at most",
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
    settle_s: float = setting(
        "GPULOOM_EXTENDER_SETTLE",
        default=90.0,
        parse=seconds,
        help="How long a vanished pod that its node never showed keeps its devices; "
        "longer than discovery's and this service's facts may be old together",
    )
    weights: WeightsConfig = group(WeightsConfig)
    grpc_host: str = grpc_host_setting()
    grpc_port: int = setting("GPULOOM_GRPC_PORT", default=50058, parse=port, help="Port to serve gRPC on")
    reflection: bool = setting(
        "GPULOOM_GRPC_REFLECTION", default=False, parse=boolean, help="Serve gRPC reflection"
    )
    tls: TlsConfig = group(TlsConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
