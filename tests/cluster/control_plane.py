"""A Kubernetes control plane on loopback: etcd, kube-apiserver, and what is asked for beside them.

    async with open_control_plane(binaries, directory, clock) as plane:
        async with plane.client() as client: …

Own certificates, RBAC and the node authorizer on, nobody anonymous. Leaving the block ends every process;
if this process is killed, they end as well. Several may run at once, each in its own directory.
"""

import asyncio
import fcntl
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError
from gpuloom.kube.access import access_from_kubeconfig
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import NAMESPACES, Resource
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.supervisor import ProcessState, RestartPolicy, Supervisor
from tests.cluster.binaries import Binaries
from tests.cluster.certificates import Authority, Identity, make_signing_key
from tests.cluster.kubeconfigs import Server, certificate_user, token_user, write_kubeconfig
from tests.cluster.network.addresses import API_SERVICE_ADDRESS, CLUSTER_DOMAIN
from tests.cluster.network.switch import Switch, open_switch
from tests.cluster.port_use import refuse_used_ports
from tests.cluster.processes import START_TIMEOUT_S, Credentials, Layout, Ports
from tests.cluster.rights import audit_flags

LOCK_FILE = ".control-plane"
ADMIN = Identity("loopback-admin", ("system:masters",))
TOKEN_LIFETIME_S = 24 * 3600

_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-node-lease")
_SETTLE_TIMEOUT_S = 20.0
_PARTS = ("etcd", "logs", "certificates", "kubeconfigs", "schedulers", "network")
# A program that does not come up once says why in its log; trying again would only hide that for longer.
_POLICY = RestartPolicy(max_early_deaths=1)


@dataclass(frozen=True)
class ControlPlaneOptions:
    """`ports` None: free ones. `network`: the API server listens where nodes with a network reach it."""

    controller_manager: bool = False
    ports: Ports | None = None
    network: bool = False
    api_server_flags: Mapping[str, str] = field(default_factory=dict)


class ControlPlane:
    """`storage` runs etcd, `supervisor` all the rest: an API server whose etcd ends first does not end."""

    def __init__(
        self,
        layout: Layout,
        authority: Authority,
        storage: Supervisor,
        supervisor: Supervisor,
        clock: Clock,
        switch: Switch | None = None,
    ) -> None:
        self._storage = storage
        self.switch = switch
        """What nodes connect to whose pods have a network of their own."""
        self.directory = layout.directory
        self.binaries = layout.binaries
        self.supervisor = supervisor
        self.url = f"https://{layout.host}:{layout.ports.api}"
        self.ports = layout.ports
        self.authority_file = layout.credentials.authority
        """What proves the API server; also what a kubelet asks of its callers."""
        self.admin = layout.credentials.admin
        self._layout = layout
        self._authority = authority
        self._clock = clock
        self._kubeconfigs = layout.directory / "kubeconfigs"
        self._kubeconfigs.mkdir()
        self.admin_kubeconfig = write_kubeconfig(
            self._kubeconfigs / "admin", self.server(), certificate_user(layout.credentials.admin)
        )

    def server(self, url: str | None = None) -> Server:
        """This API server, perhaps by another address of loopback."""
        return Server(url or self.url, self.authority_file)

    def client(self, kubeconfig: Path | None = None) -> KubeClient:
        """As whoever the kubeconfig is for; default: the administrator. Use as a context manager."""
        path = kubeconfig or self.admin_kubeconfig
        return KubeClient(access_from_kubeconfig([path], None, self._clock), self._clock)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """For a user by client certificate. A kubelet is system:node:NAME of the group system:nodes."""
        name = user.replace(":", "-").replace("/", "-")
        pair = self._authority.issue(name, Identity(user, groups))
        return write_kubeconfig(self._kubeconfigs / name, self.server(), certificate_user(pair))

    async def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """For a service account by a token that is good for a day. Raise NotFoundError if there is none."""
        tokens = Resource("", "v1", f"serviceaccounts/{name}/token", "TokenRequest")
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"namespace": namespace},
            "spec": {"expirationSeconds": TOKEN_LIFETIME_S},
        }
        async with self.client() as client:
            granted = await client.create(tokens, request)
        token_file = self._kubeconfigs / f"{namespace}-{name}.token"
        token_file.touch(mode=0o600)
        token_file.write_text(granted["status"]["token"], encoding="utf-8")
        path = self._kubeconfigs / f"{namespace}-{name}"
        return write_kubeconfig(path, self.server(), token_user(token_file))

    async def start_scheduler(self, config: str, name: str = "kube-scheduler") -> int:
        """A kube-scheduler with that KubeSchedulerConfiguration; the port of its health and metrics.

        Raise StartError if it does not come up.
        """
        (port,) = free_ports(1, random.Random())
        path = self.directory / "schedulers" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(config, encoding="utf-8")
        await self.supervisor.start([[self._layout.scheduler(name, path, port)]])
        return port

    async def apply(self, *manifests: Path) -> None:
        """As a user does it, with kubectl. Raise InvalidRequestError with what kubectl said."""
        files = [argument for path in manifests for argument in ("-f", str(path))]
        command = (str(self.binaries.path("kubectl")), "--kubeconfig", str(self.admin_kubeconfig))
        process = await asyncio.create_subprocess_exec(
            *(*command, "apply", "--server-side", *files),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"HOME": str(self.directory)},
        )
        output, _ = await process.communicate()
        if process.returncode:
            said = " | ".join(output.decode(errors="replace").strip().splitlines()[-5:])
            raise InvalidRequestError(f"kubectl apply ended with {process.returncode}: {said}")

    async def restart_api_server(self) -> None:
        """Kill it and return when its successor answers. It knows no history: older watches are gone."""
        await self._replace(self.supervisor, "kube-apiserver")
        await self._settle()

    def back_up(self, folder: Path) -> None:
        """Copy what etcd has. It is stopped meanwhile, so the copy is as after a crash."""
        self._storage.kill("etcd", signal.SIGSTOP)
        shutil.copytree(self._layout.etcd_data, folder)
        self._storage.kill("etcd", signal.SIGCONT)

    async def restore(self, folder: Path) -> None:
        """Go back to that copy; return when the API server, started anew as it must be, answers."""
        self._storage.kill("etcd", signal.SIGSTOP)
        shutil.rmtree(self._layout.etcd_data)
        shutil.copytree(folder, self._layout.etcd_data)
        await self._replace(self._storage, "etcd")
        await self.restart_api_server()

    async def _replace(self, supervisor: Supervisor, name: str) -> None:
        """Kill it and return when its successor is ready."""
        before = supervisor.restarts(name)
        supervisor.kill(name)

        def is_back(supervisor: Supervisor) -> bool:
            (status,) = (one for one in supervisor.statuses() if one.name == name)
            return status.restarts > before and status.state is ProcessState.RUNNING

        async with deadline(self._clock, START_TIMEOUT_S):
            await supervisor.until(is_back)

    async def start(self) -> None:
        """Raise StartError, in one line with the end of the log, if a process does not come up."""
        layout = self._layout
        await self.supervisor.start([[layout.api_server()]])
        await self._settle()
        if layout.with_controllers:
            await self.supervisor.start([[layout.controller_manager(self.admin_kubeconfig)]])

    async def _settle(self) -> None:
        """The API server makes its own namespaces a moment after it first answers."""
        async with deadline(self._clock, _SETTLE_TIMEOUT_S), self.client() as client:
            for name in _SYSTEM_NAMESPACES:
                while not await _answers(client, name):
                    await self._clock.sleep(0.1)


@asynccontextmanager
async def open_control_plane(
    binaries: Binaries, directory: Path, clock: Clock, options: ControlPlaneOptions | None = None
) -> AsyncIterator[ControlPlane]:
    """Everything is made anew in the directory.

    Raise ConflictError if the directory or a given port is in use, InvalidRequestError if the directory
    holds something else, StartError if a process does not come up.
    """
    options = options or ControlPlaneOptions()
    with _claimed(directory) as claim:
        if options.ports is not None:
            refuse_used_ports(astuple(options.ports))
        ports = options.ports or Ports(*free_ports(4, random.Random()))
        async with AsyncExitStack() as stack:
            switch, host = None, HOST
            if options.network:
                switch = await stack.enter_async_context(open_switch(claim.directory / "network", clock))
                host = switch.addresses.host
            authority, credentials = _make_credentials(claim.directory / "certificates", host, clock)
            layout = Layout(claim.directory, binaries, ports, credentials, options.controller_manager, clock)
            flags = {**audit_flags(claim.directory, ports.api), **options.api_server_flags}
            layout = replace(layout, host=host, api_server_flags=flags)
            # Two: an API server whose etcd ends first waits for it instead of ending.
            storage, supervisor = [
                await stack.enter_async_context(Supervisor(clock, _POLICY, keep_open=(claim.descriptor,)))
                for _ in range(2)
            ]
            plane = ControlPlane(layout, authority, storage, supervisor, clock, switch)
            await storage.start([[layout.etcd()]])
            await plane.start()
            yield plane


async def _answers(client: KubeClient, namespace: str) -> bool:
    try:
        await client.get(NAMESPACES, namespace, timeout_s=5.0)
    except GpuloomError:
        # Not there yet; or, right after a restart, the server is not, or does not know its own rules yet.
        return False
    return True


def _make_credentials(folder: Path, host: str, clock: Clock) -> tuple[Authority, Credentials]:
    now = clock.now()
    authority = Authority(folder, "ca", now)
    front_proxy = Authority(folder, "front-proxy-ca", now)
    service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    hosts = ("localhost", *service, f"{service[-1]}.{CLUSTER_DOMAIN}", API_SERVICE_ADDRESS, *{HOST, host})
    credentials = Credentials(
        authority=authority.certificate,
        front_proxy_authority=front_proxy.certificate,
        serving=authority.issue("kube-apiserver", Identity("kube-apiserver", hosts=hosts)),
        front_proxy=front_proxy.issue("front-proxy", Identity("front-proxy")),
        kubelet_client=authority.issue(
            "kubelet-client", Identity("kube-apiserver-kubelet-client", ("system:masters",))
        ),
        admin=authority.issue("admin", ADMIN),
        service_accounts=make_signing_key(folder, "service-accounts"),
    )
    return authority, credentials


@dataclass(frozen=True)
class _Claim:
    """An absolute path, and the descriptor whose lock keeps others out."""

    directory: Path
    descriptor: int


@contextmanager
def _claimed(directory: Path) -> Iterator[_Claim]:
    """The directory is ours alone, and empty of an earlier run, as long as the descriptor is open."""
    directory = directory.absolute()
    if directory.exists() and any(directory.iterdir()) and not (directory / LOCK_FILE).is_file():
        raise InvalidRequestError(f"{directory} is not empty and holds no control plane; take another")
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another control plane runs in {directory}, or an earlier one is still ending there: "
                "end it, wait a few seconds, or take another directory"
            ) from None
        for part in _PARTS:
            shutil.rmtree(directory / part, ignore_errors=True)
        yield _Claim(directory, descriptor)
    finally:
        os.close(descriptor)
