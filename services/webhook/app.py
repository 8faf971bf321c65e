"""Puts the webhook together."""

import os

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.kube.client import KubeClient
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.serving import rpc_environment
from gpuloom.rpc.tls import server_ssl_context
from gpuloom.runtime.app import App
from gpuloom.runtime.garbage import keep_out_of_the_way
from services.webhook.adapters.kubernetes import CaBundle, KubernetesCluster
from services.webhook.adapters.optimizer import OptimizerAdvisor, asking
from services.webhook.admission import Admission, AdmissionSettings
from services.webhook.config import WebhookConfig
from services.webhook.metrics import WebhookMetrics
from services.webhook.server import AdmissionPort


async def build(app: App, config: WebhookConfig) -> None:
    rpc = rpc_environment(app, config.tls)
    metrics = WebhookMetrics(app.registry)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    mirror = ClusterMirror(
        await app.enter(RpcChannel(rpc, str(config.discovery_address), "discovery")), app.clock
    )
    cluster = KubernetesCluster(
        client, app.clock, lambda: [facts.state for facts in mirror.snapshot().nodes.values()]
    )
    mirror.on_change(cluster.nodes_changed)
    app.add_loop("discovery", mirror.run)
    for informer in cluster.informers:
        app.add_loop(f"informer {informer.resource.plural}", informer.run)
    settings = AdmissionSettings(
        policy=config.pod_policy(),
        deadline_s=config.deadline_s,
        rejects=config.rejects,
        writers=frozenset(config.writers),
        strategies=frozenset(config.strategies),
    )
    optimizer = await app.enter(RpcChannel(rpc, str(config.optimizer_address), "optimizer"))
    advisor = await app.enter(OptimizerAdvisor(asking(optimizer), app.clock, metrics))
    admission = Admission(cluster, advisor, settings)
    tls = (
        None if rpc.certificates is None else server_ssl_context(rpc.certificates, config.client_certificate)
    )
    port = AdmissionPort(admission.handlers, config.https_host, config.https_port, tls, app.clock, metrics)
    await app.enter(port)
    if config.configuration is not None and rpc.certificates is not None:
        _keep_ca_bundle(app, client, config.configuration, rpc, metrics)

    def unsynced() -> str | None:
        missing = [one.resource.plural for one in cluster.informers if not one.synced]
        return f"not listed yet: {', '.join(missing)}" if missing else None

    # Discovery is not waited for: without it pods are admitted as they are.
    app.add_readiness("synced", unsynced)
    app.add_loop("garbage", lambda: keep_out_of_the_way(lambda: mirror.synced and not unsynced(), app.clock))


def _keep_ca_bundle(
    app: App, client: KubeClient, name: str, rpc: RpcEnvironment, metrics: WebhookMetrics
) -> None:
    certificates = rpc.certificates
    if certificates is None:
        return
    bundle = CaBundle(client, name, lambda: certificates.current().trusted_ca, app.clock, metrics)
    app.add_loop("CA bundle", bundle.run)
