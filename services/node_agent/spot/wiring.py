"""Puts the spot watcher together for one agent."""

import random
from collections.abc import Callable

from gpuloom.kube.informer import Informer
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from services.node_agent.node import Node
from services.node_agent.spot.aws import AwsNotices
from services.node_agent.spot.azure import AzureNotices
from services.node_agent.spot.config import SpotConfig
from services.node_agent.spot.core.clouds import Cloud, choose_cloud
from services.node_agent.spot.gcp import GcpNotices
from services.node_agent.spot.metadata import Metadata
from services.node_agent.spot.metrics import SpotMetrics
from services.node_agent.spot.watcher import NoticeSource, SpotWatcher, WatcherParts

# One poll is at most a handful of questions (AWS: token, action, token again, action, hint), and ends before
# the next begins. A link-local service answers within milliseconds.
_QUESTIONS_PER_LOOK = 6
_LONGEST_TIMEOUT_S = 1.0


def start_spot(app: App, config: SpotConfig, node: Node, nodes: Informer, metrics: SpotMetrics) -> None:
    """Watch for the cloud's notices of this node from now on; `nodes` holds at least this node."""
    metrics.watch(node)
    name = node.state.node_name
    parts = WatcherParts(
        choose=lambda: choose_cloud(config.watch, _provider_id(nodes, name)),
        source_of=_sources(config, app.clock),
        clock=app.clock,
        metrics=metrics,
        jitter=random.Random(),
    )
    app.add_loop(f"spot {name}", SpotWatcher(node, parts, config.interval_s).run)


def _sources(config: SpotConfig, clock: Clock) -> Callable[[Cloud], NoticeSource]:
    timeout_s = min(config.interval_s / _QUESTIONS_PER_LOOK, _LONGEST_TIMEOUT_S)
    metadata = Metadata(config.metadata_url, clock, timeout_s)

    def source_of(cloud: Cloud) -> NoticeSource:
        match cloud:
            case Cloud.AWS:
                return AwsNotices(metadata, clock)
            case Cloud.GCP:
                return GcpNotices(metadata)
            case Cloud.AZURE:
                return AzureNotices(metadata)

    return source_of


def _provider_id(nodes: Informer, node_name: str) -> str | None:
    node = nodes.get(node_name)
    return None if node is None else str((node.get("spec") or {}).get("providerID") or "")
