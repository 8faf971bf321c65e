"""Discovery's settings."""

from dataclasses import dataclass
from pathlib import Path

from gpuloom.kube.settings import KubeConfig
from gpuloom.rpc.settings import TlsConfig, grpc_host_setting
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import boolean, existing_file, integer, port, seconds
from gpuloom.runtime.settings import HttpConfig, LogConfig


@dataclass(frozen=True)
class DiscoveryConfig:
    agents_file: Path | None = setting(
        "GPULOOM_AGENTS_FILE",
        default=None,
        parse=existing_file,
        help="JSON object of node names and the host:port of their agents, read again when it changes; "
        "else every GPU node's internal address",
    )
    agent_port: int = setting(
        "GPULOOM_DISCOVERY_AGENT_PORT",
        default=50052,
        parse=port,
        help="Port of the agents when their addresses come from Kubernetes",
    )
    agent_ttl_s: float = setting(
        "GPULOOM_DISCOVERY_AGENT_TTL",
        default=30.0,
        parse=seconds,
        help="An agent silent for longer makes its node untrusted",
    )
    concurrent_connects: int = setting(
        "GPULOOM_DISCOVERY_CONCURRENT_CONNECTS",
        default=32,
        parse=integer(1, 1000),
        help="How many agents are connected to at the same time at most",
    )
    publish_interval_s: float = setting(
        "GPULOOM_DISCOVERY_PUBLISH_INTERVAL",
        default=0.1,
        parse=seconds,
        help="Changes within this time are published together",
    )
    heartbeat_interval_s: float = setting(
        "GPULOOM_DISCOVERY_HEARTBEAT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="How long a stream may be silent",
    )
    grpc_host: str = grpc_host_setting()
    grpc_port: int = setting("GPULOOM_GRPC_PORT", default=50053, parse=port, help="Port to serve gRPC on")
    reflection: bool = setting(
        "GPULOOM_GRPC_REFLECTION", default=False, parse=boolean, help="Serve gRPC reflection"
    )
    tls: TlsConfig = group(TlsConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
