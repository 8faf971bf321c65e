"""Discovery's settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuloom.kube.leadership import PRODUCT_NAMESPACE
from gpuloom.kube.settings import KubeConfig
from gpuloom.roster import GRPC, ROSTER
from gpuloom.rpc.serving import ServingConfig, grpc_group
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import (
    choice,
    comma_list,
    existing_file,
    integer,
    port,
    quoted,
    seconds,
    text,
)
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.discovery.adapters.kubernetes import NVLINK_DOMAIN_LABEL, RACK_LABEL
from services.discovery.agents import AgentSource
from services.discovery.core.trust import LAG_GRACE_S
from services.discovery.writer.config import WriterConfig

HEARTBEATS_A_TTL = 2
"""One late heartbeat must not close a node."""


def label_pair(raw: str) -> str:
    """`name=value`."""
    name, equals, value = raw.strip().partition("=")
    if not equals or not name or not value or set(name + value) & set("=!, "):
        raise ValueError(f"must be name=value, not {quoted(raw)}")
    return f"{name}={value}"


@dataclass(frozen=True)
class DiscoveryConfig:
    agents: AgentSource | None = setting(
        "GPULOOM_DISCOVERY_AGENTS",
        default=None,
        parse=choice(*AgentSource),
        help="How agents are found: pods (their own), nodes (the internal address of every node with GPUs), "
        "file; if not set, file if there is one, else pods",
    )
    agents_file: Path | None = setting(
        "GPULOOM_AGENTS_FILE",
        default=None,
        parse=existing_file,
        help="JSON object of node names and the host:port of their agents, read again when it changes",
    )
    agents_in: str | None = setting(
        "GPULOOM_DISCOVERY_AGENT_NAMESPACE",
        default=None,
        parse=text,
        help="Namespace of the agents' pods: nobody else's pod is taken for an agent; by default that of "
        f"this pod, else {PRODUCT_NAMESPACE}",
    )
    agent_selector: tuple[str, ...] = setting(
        "GPULOOM_DISCOVERY_AGENT_SELECTOR",
        default=("app.kubernetes.io/name=node-agent", "app.kubernetes.io/part-of=gpuloom"),
        parse=comma_list(label_pair),
        help="Labels by which the agents' pods are known: name=value, all of them",
    )
    agent_port: int = setting(
        "GPULOOM_DISCOVERY_AGENT_PORT",
        default=ROSTER["node_agent"].port(GRPC).number,
        parse=port,
        help="Port of the agents when their addresses come from Kubernetes",
    )
    agent_ttl_s: float = setting(
        "GPULOOM_DISCOVERY_AGENT_TTL",
        default=30.0,
        parse=seconds,
        help="An agent silent for longer makes its node untrusted",
    )
    agent_heartbeat_s: float = setting(
        "GPULOOM_AGENT_HEARTBEAT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="What the agents are set to; only checked against GPULOOM_DISCOVERY_AGENT_TTL",
    )
    lag_grace_s: float = setting(
        "GPULOOM_DISCOVERY_LAG_GRACE",
        default=LAG_GRACE_S,
        parse=seconds,
        help="How long a disagreement of pods and holders that lag can explain costs no trust",
    )
    rack_label: str = setting(
        "GPULOOM_RACK_LABEL", default=RACK_LABEL, parse=text, help="Node label that names the rack"
    )
    nvlink_domain_label: str = setting(
        "GPULOOM_NVLINK_DOMAIN_LABEL",
        default=NVLINK_DOMAIN_LABEL,
        parse=text,
        help="Node label that names the NVLink domain",
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
    usage_interval_s: float = setting(
        "GPULOOM_DISCOVERY_USAGE_INTERVAL",
        default=5.0,
        parse=seconds,
        help="Changes of GPU usage within this time are told together",
    )
    heartbeat_interval_s: float = setting(
        "GPULOOM_DISCOVERY_HEARTBEAT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="How long a stream may be silent",
    )
    grpc: ServingConfig = grpc_group("discovery")
    writer: WriterConfig = group(WriterConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    @property
    def agent_namespace(self) -> str:
        return self.agents_in or self.writer.leadership.pod_namespace or PRODUCT_NAMESPACE

    @property
    def agent_labels(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.agent_selector)

    @property
    def agent_source(self) -> AgentSource:
        if self.agents is not None:
            return self.agents
        return AgentSource.PODS if self.agents_file is None else AgentSource.FILE

    def problems(self) -> Iterator[str]:
        if self.agent_source is AgentSource.FILE and self.agents_file is None:
            yield "GPULOOM_DISCOVERY_AGENTS=file needs GPULOOM_AGENTS_FILE"
        least_s = HEARTBEATS_A_TTL * self.agent_heartbeat_s
        if self.agent_ttl_s < least_s:
            yield (
                f"GPULOOM_DISCOVERY_AGENT_TTL must be at least {least_s:g}s, not {self.agent_ttl_s:g}s: an "
                f"agent with nothing to tell is silent for {self.agent_heartbeat_s:g}s "
                f"(GPULOOM_AGENT_HEARTBEAT_INTERVAL), and one late heartbeat must not close its node"
            )
