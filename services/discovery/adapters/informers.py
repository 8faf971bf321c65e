"""Tells the model what the informers of nodes and pods see, and finds agents by it."""

from collections.abc import Callable, Mapping

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import uid_of
from gpuloom.runtime.parsers import Address
from services.discovery.adapters.kubernetes import PlaceLabels, cluster_node, internal_address
from services.discovery.adapters.pods import agent_pod, node_pod
from services.discovery.agents import AgentPods, WantedAgents
from services.discovery.core.cluster import ClusterModel

Handler = Callable[[Change], None]


def observing_nodes(model: ClusterModel, labels: PlaceLabels) -> Handler:
    def handle(change: Change) -> None:
        if change.new is not None:
            model.observe_node(cluster_node(change.new, labels))
        else:
            model.forget_node(change.key[1])

    return handle


def observing_pods(model: ClusterModel) -> Handler:
    def handle(change: Change) -> None:
        pod = node_pod(change.new) if change.new is not None else None
        if pod is not None:
            model.observe_pod(pod)
        else:
            model.forget_pod(uid_of(change.object))

    return handle


def finding_agents_by_node(wanted: WantedAgents, port: int) -> Handler:
    """An agent is where anything says that a node has GPUs."""

    def handle(change: Change) -> None:
        has_gpus = change.new is not None and cluster_node(change.new).has_gpus
        host = internal_address(change.new) if change.new is not None and has_gpus else ""
        if host:
            wanted.set(change.key[1], Address(host, port))
        else:
            wanted.forget(change.key[1])

    return handle


def finding_agents_by_pod(agents: AgentPods, namespace: str, labels: Mapping[str, str]) -> Handler:
    def handle(change: Change) -> None:
        pod = agent_pod(change.new, namespace, labels) if change.new is not None else None
        agents.observe(uid_of(change.object), pod)

    return handle
