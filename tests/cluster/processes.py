"""The processes of a control plane on loopback: programs, flags, and how one sees that they are ready.

Pure but for the probes. Nothing here starts a process.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.child_process import Probe, ProcessSpec
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import TIMEOUT_S, answers_ok
from tests.cluster.binaries import Binaries
from tests.cluster.certificates import KeyPair
from tests.cluster.network.addresses import SERVICE_RANGE

SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc"
START_TIMEOUT_S = 120.0

# Lifecycle, pod ranges and routes belong to real nodes: a node that is only an object sends no lease, and
# would be tainted as lost.
_CONTROLLERS = "*,-node-lifecycle-controller,-node-ipam-controller,-node-route-controller"
_OPEN_PATHS = "/healthz,/readyz,/livez,/metrics"


@dataclass(frozen=True)
class Ports:
    etcd: int
    etcd_peers: int
    api: int
    controller_manager: int


@dataclass(frozen=True)
class Credentials:
    """Files that the processes show or trust."""

    authority: Path
    front_proxy_authority: Path
    serving: KeyPair
    front_proxy: KeyPair
    kubelet_client: KeyPair
    admin: KeyPair
    service_accounts: KeyPair


@dataclass(frozen=True)
class Layout:
    """Everything that the flags depend on."""

    directory: Path
    binaries: Binaries
    ports: Ports
    credentials: Credentials
    with_controllers: bool
    clock: Clock
    host: str = HOST
    """Where the API server listens."""
    api_server_flags: Mapping[str, str] = field(default_factory=dict)
    """Further ones, which win over ours."""

    @property
    def etcd_data(self) -> Path:
        return self.directory / "etcd"

    def etcd(self) -> ProcessSpec:
        client, peers = _http(self.ports.etcd), _http(self.ports.etcd_peers)
        flags = {
            "name": "loopback",
            "data-dir": self.etcd_data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"loopback={peers}",
            # Nothing here needs to survive a power cut, and waiting for the disk is most of a write.
            "unsafe-no-fsync": "true",
        }
        return self._spec("etcd", flags, answers_ok(f"{client}/health", self.clock))

    def api_server(self) -> ProcessSpec:
        files = self.credentials
        disabled = ["TaintNodesByCondition"]
        if not self.with_controllers:
            # Without the controllers no namespace gets the account that this plugin demands.
            disabled.append("ServiceAccount")
        flags: dict[str, object] = {
            "bind-address": self.host,
            "advertise-address": self.host,
            "secure-port": self.ports.api,
            "service-cluster-ip-range": SERVICE_RANGE,
            **self._reaching_pods(),
            "etcd-servers": _http(self.ports.etcd),
            "anonymous-auth": "false",
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "true",
            "client-ca-file": files.authority,
            "tls-cert-file": files.serving.certificate,
            "tls-private-key-file": files.serving.key,
            "kubelet-client-certificate": files.kubelet_client.certificate,
            "kubelet-client-key": files.kubelet_client.key,
            "requestheader-client-ca-file": files.front_proxy_authority,
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": files.front_proxy.certificate,
            "proxy-client-key-file": files.front_proxy.key,
            "service-account-issuer": SERVICE_ACCOUNT_ISSUER,
            "service-account-key-file": files.service_accounts.certificate,
            "service-account-signing-key-file": files.service_accounts.key,
            "disable-admission-plugins": ",".join(disabled),
            **self.api_server_flags,
        }
        ready = _answers_https(f"https://{self.host}:{self.ports.api}/readyz", self._admin_tls(), self.clock)
        return self._spec("kube-apiserver", flags, ready)

    def _reaching_pods(self) -> dict[str, object]:
        if self.host == HOST:
            # No address that Kubernetes lets an Endpoints object have.
            return {"endpoint-reconciler-type": "none"}
        # This machine has no kube-proxy: it reaches pods, such as those of webhooks, without their Service.
        return {"enable-aggregator-routing": "true", "kubelet-preferred-address-types": "InternalIP"}

    def controller_manager(self, kubeconfig: Path) -> ProcessSpec:
        port = self.ports.controller_manager
        flags = {
            "bind-address": HOST,
            "secure-port": port,
            "kubeconfig": kubeconfig,
            "controllers": _CONTROLLERS,
            "leader-elect": "false",
            "root-ca-file": self.credentials.authority,
            "service-account-private-key-file": self.credentials.service_accounts.key,
            "authorization-always-allow-paths": _OPEN_PATHS,
        }
        ready = _answers_https(f"https://{HOST}:{port}/healthz", _no_proof(), self.clock)
        return self._spec("kube-controller-manager", flags, ready)

    def scheduler(self, name: str, config: Path, port: int) -> ProcessSpec:
        """`config` is a KubeSchedulerConfiguration that names its own kubeconfig."""
        flags = {
            "bind-address": HOST,
            "secure-port": port,
            "config": config,
            "authorization-always-allow-paths": _OPEN_PATHS,
        }
        ready = _answers_https(f"https://{HOST}:{port}/readyz", _no_proof(), self.clock)
        return self._spec("kube-scheduler", flags, ready, name)

    def _spec(
        self, program: str, flags: Mapping[str, object], ready: Probe, name: str | None = None
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name or program,
            argv=(
                str(self.binaries.path(program)),
                *(f"--{flag}={value}" for flag, value in flags.items()),
            ),
            log_path=self.directory / "logs" / f"{name or program}.log",
            # Not the shell's: a KUBECONFIG or a proxy of the user must not reach a control plane of a test.
            environment={"PATH": os.environ.get("PATH", ""), "HOME": str(self.directory)},
            working_dir=self.directory,
            ready=ready,
            start_timeout_s=START_TIMEOUT_S,
        )

    def _admin_tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.credentials.authority)
        # As the client does: Python 3.13 is stricter with authorities than Kubernetes is.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.load_cert_chain(self.credentials.admin.certificate, self.credentials.admin.key)
        return context


def _answers_https(url: str, tls: ssl.SSLContext, clock: Clock) -> Probe:
    async def probe() -> bool:
        try:
            async with (
                deadline(clock, TIMEOUT_S),
                aiohttp.ClientSession() as session,
                session.get(url, ssl=tls) as answer,
            ):
                await answer.read()
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    return probe


def _no_proof() -> ssl.SSLContext:
    """These programs make themselves a certificate at every start; a health check trusts them."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _http(port: int) -> str:
    return f"http://{HOST}:{port}"
