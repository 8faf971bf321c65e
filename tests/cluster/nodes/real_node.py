"""A real Kubernetes node on this machine: containerd (CRI, NRI, CDI) and kubelet, joined to a control plane.

    async with RealNode("node-a", plane, programs) as node:
        …  # it is Ready, and pods bound to it run

Each node has a PID namespace, a mount namespace, a control group and a folder of its own. In its mount
namespace the folder's parts stand where every program expects them, such as /var/lib/kubelet.
It shares the machine's network, so that a pod needs `hostNetwork: true`; but if its control plane has a
switch, the node is connected to that, and any pod has a network. `imagePullPolicy: Never` in either case.
"""

import asyncio
import random
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from gpuloom.errors import InvalidRequestError, NotFoundError, UnavailableError
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.resources import NODES
from gpuloom.runtime.clock import Clock, SystemClock, deadline
from gpuloom.sim.processes.child_process import Probe, ProcessSpec, signal_group
from gpuloom.sim.processes.ports import free_ports
from gpuloom.sim.processes.probes import answers_ok
from gpuloom.sim.processes.supervisor import ProcessState, RestartPolicy, Supervisor
from tests.cluster.control_plane import ControlPlane
from tests.cluster.network.addresses import DNS_ADDRESS
from tests.cluster.network.configuration import pod_network_configuration
from tests.cluster.nodes import init_process
from tests.cluster.nodes.cgroups import create_subtree
from tests.cluster.nodes.claims import Claim, claim_home, give_up_home
from tests.cluster.nodes.configuration import (
    HOST,
    KERNEL_SETTINGS,
    LARGE_IMAGES,
    SMALL_IMAGES,
    KubeletSettings,
    NodePorts,
    RuntimeLine,
    containerd_configuration,
    kubelet_configuration,
    network_configuration,
)
from tests.cluster.nodes.image import write_image
from tests.cluster.nodes.kubelet_api import KubeletApi
from tests.cluster.nodes.programs import NodePrograms

READY_TIMEOUT_S = 120.0
IMPORT_TIMEOUT_S = 300.0
"""Of all our images at once, unpacked on two nodes of a busy machine."""
CONTAINERD_NAMESPACE = "k8s.io"

_INIT = "init"
_POLL_S = 0.1
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
# A node whose first process ended is a machine that lost its power: nothing of it can be started again.
_POLICY = RestartPolicy(first_delay_s=0.05, max_early_deaths=3)
# Of a node that shares its ports with nobody: those that everybody knows.
_OWN_PORTS = NodePorts(kubelet=10250, kubelet_health=10248)


class Daemon(StrEnum):
    CONTAINERD = "containerd"
    KUBELET = "kubelet"


@dataclass(frozen=True)
class NodePaths:
    """Where things of the node are, as seen from outside it."""

    home: Path
    logs: Path

    @property
    def pod_resources_socket(self) -> Path:
        return self.home / "kubelet/pod-resources/kubelet.sock"

    @property
    def device_plugins(self) -> Path:
        return self.home / "kubelet/device-plugins"

    @property
    def containerd_socket(self) -> Path:
        return self.home / "run/containerd.sock"

    @property
    def nri_socket(self) -> Path:
        return self.home / "nri/nri.sock"

    @property
    def cdi(self) -> Path:
        """/var/run/cdi of the node; what is written here wins over `static_cdi`."""
        return self.home / "cdi"

    @property
    def static_cdi(self) -> Path:
        """/etc/cdi of the node."""
        return self.home / "cdi-static"

    @property
    def driver(self) -> Path:
        """/proc/driver of the node; empty, as on a machine without a GPU, until a test says otherwise."""
        return self.home / "driver"

    def mounts(self) -> dict[Path, str]:
        """What stands where in the node's mount namespace."""
        folders = {
            "kubelet": "/var/lib/kubelet",
            "run": "/run/containerd",
            "nri": "/run/nri",
            "cdi": "/run/cdi",
            "cdi-static": "/etc/cdi",
            "driver": "/proc/driver",
            "log/containers": "/var/log/containers",
            "cni/state": "/var/lib/cni",
            "netns": "/run/netns",
        }
        settings = {f"sysctl/{name}": f"/proc/sys/{name}" for name in KERNEL_SETTINGS}
        return {self.home / part: target for part, target in (folders | settings).items()}


class RealNode:
    """Entering returns when the node is Ready; leaving ends and removes all of it but its logs."""

    def __init__(
        self,
        name: str,
        plane: ControlPlane,
        programs: NodePrograms,
        runtime: RuntimeLine = RuntimeLine.CONTAINERD_2,
        clock: Clock | None = None,
    ) -> None:
        if _NAME.fullmatch(name) is None:
            raise InvalidRequestError(f"{name!r} can't name a node: letters, digits and hyphens, at most 42")
        self.name = name
        self.runtime = runtime
        self.addresses = plane.switch.reserve() if plane.switch else None
        """None: it shares the machine's."""
        self.ports = _OWN_PORTS if self.addresses else NodePorts(*free_ports(2, random.Random()))
        self._plane = plane
        self._programs = programs
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._supervisor: Supervisor | None = None
        self._claim: Claim | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """As if its power was cut; then nothing is left of it but its logs and what Kubernetes knows."""
        await self._stack.aclose()

    @property
    def paths(self) -> NodePaths:
        return NodePaths(self.claim.home, self._plane.directory / "logs" / f"node-{self.name}")

    @property
    def claim(self) -> Claim:
        if self._claim is None:
            raise ValueError(f"node {self.name} has not been started")
        return self._claim

    @property
    def address(self) -> str:
        """Where this machine reaches its kubelet."""
        return self.addresses.address if self.addresses else HOST

    async def kill(self, daemon: Daemon, number: signal.Signals = signal.SIGKILL) -> None:
        """End the daemon by a signal; it is started again at once. Returns when its successor answers."""
        supervisor = self._running()
        before = supervisor.restarts(daemon)
        supervisor.kill(daemon, number)
        async with deadline(self._clock, READY_TIMEOUT_S):
            await supervisor.until(lambda _: _is_back(supervisor, daemon, before))

    async def run_in(self, *command: str, timeout_s: float = 30.0) -> str:
        """What a command writes, run inside the node. Raise UnavailableError or TimeoutError if it fails."""
        process = await asyncio.create_subprocess_exec(
            *self._entering(),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        try:
            async with deadline(self._clock, timeout_s):
                output, complaints = await process.communicate()
        except BaseException:
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        if process.returncode:
            said = complaints.decode(errors="replace").strip()[-500:]
            raise UnavailableError(
                f"{' '.join(command)} on {self.name} ended with {process.returncode}: {said}"
            )
        return output.decode(errors="replace")

    async def run_in_container(self, pod: JsonObject, *command: str) -> str:
        """As run_in, inside the first container of a running pod; by the kubelet, as `kubectl exec` does."""
        namespace, name = key_of(pod)
        container = pod["spec"]["containers"][0]["name"]
        kubelet = KubeletApi(
            f"{self.address}:{self.ports.kubelet}", self._plane.admin_kubeconfig, self._clock
        )
        return await kubelet.execute(namespace, name, container, command)

    async def start_program(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], ready: Probe
    ) -> None:
        """Run it inside the node as one of its daemons, until the node ends. Raise StartError if it can't."""
        spec = self._spec(name, self._daemon(*command), ready)
        told = {**spec.environment, **environment}
        await self._running().start([[replace(spec, environment=told)]])

    async def load_image(self, archive: Path) -> None:
        command = ("ctr", "--namespace", CONTAINERD_NAMESPACE, "images", "import", str(archive))
        await self.run_in(*command, timeout_s=IMPORT_TIMEOUT_S)

    async def wait_ready(self) -> None:
        """Until Kubernetes shows the node Ready. Raise UnavailableError with its reason if it does not."""
        said = "it has not registered"
        try:
            async with deadline(self._clock, READY_TIMEOUT_S), self._plane.client() as client:
                while said:
                    try:
                        said = _not_ready_reason(await client.get(NODES, self.name))
                    except NotFoundError:
                        said = "it has not registered"
                    await self._clock.sleep(_POLL_S if said else 0)
        except TimeoutError:
            raise UnavailableError(f"node {self.name} is not Ready: {said}; see {self.paths.logs}") from None

    async def _start(self) -> None:
        port = self._plane.ports.api
        self._claim = claim = await asyncio.to_thread(claim_home, f"{port}-{self.name}")
        self._stack.push_async_callback(asyncio.to_thread, give_up_home, claim)
        await asyncio.to_thread(self._write_files)
        supervisor = Supervisor(self._clock, _POLICY, keep_open=(claim.descriptor,))
        self._supervisor = await self._stack.enter_async_context(supervisor)
        await supervisor.start([[self._init()]])
        if self._plane.switch and self.addresses:
            await self._plane.switch.connect(self.addresses, supervisor.pid(_INIT))
        await supervisor.start([[self._containerd()]])
        await self.load_image(claim.home / "image.tar")
        await supervisor.start([[self._kubelet()]])
        await self.wait_ready()

    def _write_files(self) -> None:
        home, cgroup = self.claim.home, self.claim.cgroup
        create_subtree(cgroup)
        for name, value in KERNEL_SETTINGS.items():
            _write(home / "sysctl" / name, f"{value}\n")
        for folder in (*self.paths.mounts(), home / "root", home / "volume-plugins", self.paths.logs):
            if not folder.is_file():
                folder.mkdir(parents=True, exist_ok=True)
        self._write_network_files()
        snapshotter = LARGE_IMAGES if self.addresses else SMALL_IMAGES
        _write(home / "containerd.toml", containerd_configuration(self.runtime, home, snapshotter))
        settings = KubeletSettings(self.ports, self._plane.authority_file, f"/{cgroup}", self.address)
        if self.addresses:
            settings = replace(settings, dns=DNS_ADDRESS)
        _write(home / "kubelet.yaml", kubelet_configuration(settings, home))
        kubeconfig = self._plane.kubeconfig_for(f"system:node:{self.name}", ["system:nodes"])
        shutil.copy(kubeconfig, home / "kubeconfig")
        write_image(self._programs.tools / "busybox", home / "image.tar")

    def _write_network_files(self) -> None:
        folder = self.claim.home / "cni"
        if self.addresses is None:
            _write(folder / "conf/10-loopback.conflist", network_configuration())
            return
        if self._programs.network is None:
            raise ValueError(f"node {self.name} has a network, but no programs for it")
        _write(folder / "conf/10-pods.conflist", pod_network_configuration(self.addresses))
        (folder / "bin").symlink_to(self._programs.network.plugins)

    def _init(self) -> ProcessSpec:
        mounts = [f"{source}={target}" for source, target in self.paths.mounts().items()]
        ready = self.claim.home / "mounted"
        argv = (
            *(
                "unshare",
                "--fork",
                "--kill-child",
                "--pid",
                "--mount",
                "--mount-proc",
                "--propagation",
                "slave",
                *(["--net"] if self.addresses else []),
            ),
            *(sys.executable, "-I", "-S", str(Path(init_process.__file__)), str(ready), *mounts),
        )
        return self._spec(_INIT, argv, _exists(ready))

    def _containerd(self) -> ProcessSpec:
        config = self.claim.home / "containerd.toml"
        program = str(self._programs.containerd / "containerd")
        ready = _accepts(self.paths.containerd_socket, self._clock)
        return self._spec(Daemon.CONTAINERD, self._daemon(program, "--config", str(config)), ready)

    def _kubelet(self) -> ProcessSpec:
        home = self.claim.home
        flags = {
            "config": home / "kubelet.yaml",
            "kubeconfig": home / "kubeconfig",
            "hostname-override": self.name,
            **({"node-ip": self.address} if self.addresses else {}),
        }
        arguments = (f"--{flag}={value}" for flag, value in flags.items())
        ready = answers_ok(f"http://{self.address}:{self.ports.kubelet_health}/healthz", self._clock)
        return self._spec(Daemon.KUBELET, self._daemon(str(self._programs.kubelet), *arguments), ready)

    def _spec(self, name: str, argv: tuple[str, ...], ready: Probe) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=argv,
            log_path=self.paths.logs / f"{name}.log",
            environment=self._environment(),
            ready=ready,
            start_timeout_s=READY_TIMEOUT_S,
        )

    def _daemon(self, *command: str) -> tuple[str, ...]:
        # Between us and the daemon stands nsenter, which waits for it. A request to end goes to both, and
        # must be the daemon's to answer: Go programs listen to it although they start with it ignored.
        return ("env", "--ignore-signal=TERM", *self._entering(), *command)

    def _entering(self) -> tuple[str, ...]:
        pid = self._running().pid(_INIT)
        own = {"mount": "mnt", "pid": "pid_for_children", **({"net": "net"} if self.addresses else {})}
        return ("nsenter", *(f"--{option}=/proc/{pid}/ns/{name}" for option, name in own.items()), "--")

    def _environment(self) -> Mapping[str, str]:
        # Not the shell's: a KUBECONFIG or a proxy of the user must not reach a node of a test.
        return {"PATH": self._programs.search_path, "HOME": str(self.claim.home)}

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise ValueError(f"node {self.name} has not been started")
        return self._supervisor


def _is_back(supervisor: Supervisor, name: str, restarts_before: int) -> bool:
    status = next(status for status in supervisor.statuses() if status.name == name)
    if status.state is ProcessState.GIVEN_UP:
        raise UnavailableError(f"{name} {status.last_exit} again and again after it was killed")
    return status.state is ProcessState.RUNNING and status.restarts > restarts_before


def _not_ready_reason(node: Mapping[str, object]) -> str:
    status = node.get("status")
    conditions = status.get("conditions") or [] if isinstance(status, dict) else []
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    if ready is None:
        return "it has not reported yet"
    return "" if ready.get("status") == "True" else str(ready.get("message"))


def _exists(path: Path) -> Probe:
    async def probe() -> bool:
        return await asyncio.to_thread(path.exists)

    return probe


def _accepts(socket: Path, clock: Clock) -> Probe:
    async def probe() -> bool:
        try:
            async with deadline(clock, 2.0):
                _, writer = await asyncio.open_unix_connection(socket)
        except (OSError, TimeoutError):
            return False
        writer.close()
        await writer.wait_closed()
        return True

    return probe


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
