"""Puts discovery together."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from gpuloom.clients.agents import parse_agents, read_agents_body
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import NODES
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer, ServerOptions
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.parsers import Address
from gpuloom.v1 import discovery_pb2
from gpuloom.v1.discovery_pb2_grpc import add_DiscoveryServiceServicer_to_server
from services.discovery.adapters.agents import GrpcAgents
from services.discovery.adapters.kubernetes import cluster_node, internal_address
from services.discovery.cluster import ClusterModel
from services.discovery.config import DiscoveryConfig
from services.discovery.followers import Followers, FollowerSettings
from services.discovery.metrics import DiscoveryMetrics
from services.discovery.readmodel import ReadModel
from services.discovery.server import ALLOWED_CALLERS, DiscoveryServer

SERVICE = discovery_pb2.DESCRIPTOR.services_by_name["DiscoveryService"]

_log = logging.getLogger(__name__)


async def build(app: App, config: DiscoveryConfig) -> None:
    rpc = RpcEnvironment(config.tls.files(), app.registry, app.clock)
    metrics = DiscoveryMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    nodes = Informer(client, NODES, app.clock)
    model = ReadModel(ClusterModel(config.agent_ttl_s), lambda: nodes.synced, app.clock, metrics)
    settings = FollowerSettings(config.concurrent_connects, silence_s=config.agent_ttl_s / 2)
    followers = Followers(GrpcAgents(rpc), model.hear, app.clock, settings)
    wanted = WantedAgents(model, followers)
    nodes.on_change(lambda change: _observe(model, change))
    app.add_loop("nodes", nodes.run)
    app.add_loop("agents", followers.run)
    if config.agents_file is not None:
        file = AgentsFile(config.agents_file, wanted, app.clock)
        file.read()
        app.add_loop("agents file", file.run)
    else:
        nodes.on_change(lambda change: _want(wanted, change, config.agent_port))
    app.add_loop("publish", lambda: model.run(config.publish_interval_s))
    app.add_readiness("synced", lambda: model.unsynced_reason() or None)
    server = RpcServer(rpc, config.grpc_host, config.grpc_port, ServerOptions(reflection=config.reflection))
    servicer = DiscoveryServer(model, config.heartbeat_interval_s, metrics)
    server.add(servicer, add_DiscoveryServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    await app.enter(server)
    app.on_drain("grpc", lambda: server.drain(grace_s=2.0))


class WantedAgents:
    """The agents that should be there; both the model and the followers learn of every change."""

    def __init__(self, model: ReadModel, followers: Followers) -> None:
        self._model = model
        self._followers = followers
        self._addresses: dict[str, Address] = {}

    def set_all(self, addresses: Mapping[str, Address]) -> None:
        for name in self._addresses.keys() - addresses.keys():
            self.forget(name)
        for name, address in addresses.items():
            self.set(name, address)

    def set(self, name: str, address: Address) -> None:
        if self._addresses.get(name) == address:
            return
        self._addresses[name] = address
        self._model.expect_agent(name)
        self._followers.follow(name, address)

    def forget(self, name: str) -> None:
        if self._addresses.pop(name, None) is not None:
            self._model.forget_agent(name)
            self._followers.forget(name)


class AgentsFile:
    """Agents from a file, read again when it was replaced; a broken file keeps what was read before."""

    interval_s = 2.0

    def __init__(self, path: Path, wanted: WantedAgents, clock: Clock) -> None:
        self._path = path
        self._wanted = wanted
        self._clock = clock
        self._body = b""

    def read(self) -> None:
        """Raise InvalidRequestError if the file can't be used."""
        body = read_agents_body(self._path)
        if body != self._body:
            self._wanted.set_all(parse_agents(body, str(self._path)))
            self._body = body

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self.interval_s)
            try:
                self.read()
            except InvalidRequestError as error:
                _log.warning("agents file not used", extra={"reason": str(error)})


def _observe(model: ReadModel, change: Change) -> None:
    if change.new is not None:
        model.observe_node(cluster_node(change.new))
    elif change.old is not None:
        model.forget_node(str(metadata_of(change.old).get("name", "")))


def _want(wanted: WantedAgents, change: Change, port: int) -> None:
    """An agent is where a node offers GPUs."""
    host = "" if change.new is None else _agent_host(change.new)
    if host:
        wanted.set(change.key[1], Address(host, port))
    else:
        wanted.forget(change.key[1])


def _agent_host(node: JsonObject) -> str:
    facts = cluster_node(node)
    return internal_address(node) if facts.offers_nvidia or facts.offers_gpuloom else ""
