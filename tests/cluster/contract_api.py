"""The real API server as the contract suite of `gpuloom/kube` wants it: as new for every test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import NotFoundError
from gpuloom.kube.access import KubeAccess, ServerTrust, access_from_kubeconfig
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.credentials import ConfiguredCredential, FileText, InlineText
from gpuloom.kube.objects import key_of
from gpuloom.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, LEASES, NODES, PDBS, PODS, Resource
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.processes.ports import HOST
from tests.cluster.kubeconfigs import certificate_user, write_kubeconfig
from tests.cluster.shared import AGENT_NAMESPACE, NAMESPACE, SharedControlPlane
from tests.cluster.tcp_proxy import TcpProxy

CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
_KEPT_NAMESPACES = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", "default", NAMESPACE, AGENT_NAMESPACE}
)
_CLOCK = SystemClock()


@dataclass(frozen=True)
class RealApi:
    shared: SharedControlPlane
    proxy: TcpProxy
    kubeconfig: Path

    @property
    def access(self) -> KubeAccess:
        return access_from_kubeconfig([self.kubeconfig], None, _CLOCK)

    def access_as(self, token: str) -> KubeAccess:
        trust = ServerTrust(FileText(self.shared.plane.authority_file, _CLOCK))
        return KubeAccess(self.shared.plane.url, ConfiguredCredential(InlineText(token)), trust)

    async def compact(self, resource_version: str) -> None:
        """A new API server starts with the present state; all that was before is gone for its watches."""
        await self.shared.restart_api_server()

    def disconnect_watches(self) -> None:
        self.proxy.break_connections()


@asynccontextmanager
async def real_api(shared: SharedControlPlane) -> AsyncIterator[RealApi]:
    plane = shared.plane
    async with TcpProxy(plane.ports.api) as proxy:
        kubeconfig = write_kubeconfig(
            plane.directory / "kubeconfigs" / "proxied",
            plane.server(f"https://{HOST}:{proxy.port}"),
            certificate_user(plane.admin),
        )
        try:
            yield RealApi(shared, proxy, kubeconfig)
        finally:
            async with shared.client() as client:
                await _clear(client)


async def _clear(client: KubeClient) -> None:
    for resource in (DEPLOYMENTS, PODS, CONFIGMAPS, PDBS, EVENTS, LEASES, NODES, CRDS):
        for item in (await client.list(resource)).items:
            namespace, name = key_of(item)
            if namespace not in _KEPT_NAMESPACES:
                try:
                    await client.delete(resource, name, namespace or None, DeleteOptions(grace_period_s=0))
                except NotFoundError:
                    continue
