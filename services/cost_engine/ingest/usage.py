"""Follows the usage windows of all agents that discovery knows."""

from gpuloom.clients.agent_directory import AgentDirectory
from gpuloom.clients.discovery import ClusterMirror
from gpuloom.clients.usage import UsageFollower
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.app import App
from services.cost_engine.engine import Loop
from services.cost_engine.ingest.consumer import StoreConsumer
from services.cost_engine.metrics import CostMetrics


async def follow_usage(
    app: App, rpc: RpcEnvironment, discovery_address: str, consumer: StoreConsumer, metrics: CostMetrics
) -> Loop:
    """The loop for the leader; discovery itself is followed from the start."""
    discovery = await app.enter(RpcChannel(rpc, discovery_address, "discovery"))
    mirror = ClusterMirror(discovery, app.clock)
    directory = AgentDirectory(mirror)
    app.add_loop("discovery", mirror.run)
    follower = UsageFollower(directory, rpc, consumer)
    metrics.lagging_nodes.set_function(
        lambda: float(sum(not progress.live for progress in follower.progress.values()))
    )
    return follower.run
