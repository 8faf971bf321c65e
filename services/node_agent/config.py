"""The agent's settings."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpuloom.kube.settings import KubeConfig
from gpuloom.rpc.settings import TlsConfig, grpc_host_setting
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.parsers import boolean, choice, port, seconds, text
from gpuloom.runtime.settings import HttpConfig, LogConfig


class Driver(StrEnum):
    SIMULATED = "simulated"


@dataclass(frozen=True)
class AgentConfig:
    node_name: str = setting(
        "GPULOOM_NODE_NAME", default=REQUIRED, parse=text, help="Name of the Kubernetes node this agent is on"
    )
    driver: Driver = setting(
        "GPULOOM_AGENT_DRIVER",
        default=REQUIRED,
        parse=choice(*Driver),
        help="Where GPUs are read from: simulated",
    )
    machine_dir: Path = setting(
        "GPULOOM_AGENT_MACHINE_DIR",
        default=REQUIRED,
        parse=lambda raw: Path(text(raw)),
        help="Directory of the simulated machine, which also says in which mode the node is",
    )
    sample_interval_s: float = setting(
        "GPULOOM_AGENT_SAMPLE_INTERVAL",
        default=1.0,
        parse=seconds,
        help="How often the node is looked at",
    )
    heartbeat_interval_s: float = setting(
        "GPULOOM_AGENT_HEARTBEAT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="How long a stream may be silent; keep it well below the reader's TTL of 30s",
    )
    grpc_host: str = grpc_host_setting()
    grpc_port: int = setting("GPULOOM_GRPC_PORT", default=50052, parse=port, help="Port to serve gRPC on")
    reflection: bool = setting(
        "GPULOOM_GRPC_REFLECTION", default=False, parse=boolean, help="Serve gRPC reflection"
    )
    tls: TlsConfig = group(TlsConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
