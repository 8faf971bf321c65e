"""The network of a test cluster: a virtual switch to which this machine and the nodes are connected.

    async with open_switch(folder, clock) as switch:
        place = switch.reserve()
        await switch.connect(place, pid)  # of a process in the node's own network namespace

The switch is a bridge in a network namespace of its own, so that no firewall of this machine (Docker's, for
one) sees what nodes say to each other. There is no way out: nodes have routes to the cluster's addresses and
no others. With the process that holds the namespace the kernel removes every interface of the cluster.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.supervisor import Supervisor
from tests.cluster.network.addresses import MAX_CLUSTERS, SERVICE_RANGE, ClusterAddresses, NodeAddresses

_HOLDER = "network"
_INTERFACES = Path("/sys/class/net")


class Switch:
    def __init__(self, addresses: ClusterAddresses, holder_pid: int) -> None:
        self.addresses = addresses
        self._holder_pid = holder_pid
        self._reserved = 0

    def reserve(self) -> NodeAddresses:
        """The addresses of one more node. Raise InvalidRequestError if there are too many."""
        self._reserved += 1
        return self.addresses.node(self._reserved)

    async def connect(self, node: NodeAddresses, pid: int | None) -> None:
        """Plug in the network namespace of that process, and give it its addresses and routes."""
        if pid is None:
            raise UnavailableError(f"node {node.address} ended before it was connected")
        port = f"node-{node.number}"
        await _ip(
            self._holder_pid,
            f"link add {port} type veth peer name eth0 netns {pid}",
            f"link set {port} master switch up",
        )
        routes = [f"route add {other.pods} via {other.address}" for other in self.addresses.nodes()]
        del routes[node.number - 1]
        await _ip(
            pid,
            "link set lo up",
            f"address add {node.address}/{node.prefix_length} dev eth0",
            "link set eth0 up",
            # Never sent there: kube-proxy turns it away first, but without a route it would not be asked.
            f"route add {SERVICE_RANGE} dev eth0",
            *routes,
        )
        await _run((*_inside(pid), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"))


@asynccontextmanager
async def open_switch(folder: Path, clock: Clock) -> AsyncIterator[Switch]:
    """Raise UnavailableError if this machine can't have one."""
    ready = folder / "ready"
    hold = f"echo >'{ready}' && exec sleep infinity"
    spec = ProcessSpec(
        name=_HOLDER,
        argv=("unshare", "--net", "sh", "-c", hold),
        log_path=folder / "network.log",
        environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        ready=lambda: asyncio.to_thread(ready.exists),
    )
    async with Supervisor(clock) as supervisor:
        await supervisor.start([[spec]])
        pid = supervisor.pid(_HOLDER)
        if pid is None:
            raise UnavailableError(f"the network namespace of {folder} ended at once")
        addresses = await _connect_this_machine(pid)
        try:
            yield Switch(addresses, pid)
        finally:
            # The kernel would do it, a little after the namespace is gone.
            await _ip(None, f"link delete {_interface(addresses)}")


async def _connect_this_machine(pid: int) -> ClusterAddresses:
    await _ip(pid, "link add switch type bridge", "link set switch up")
    for number in range(MAX_CLUSTERS):
        # Whoever makes the interface of that name has the number, until its namespace is gone.
        addresses = ClusterAddresses(number)
        interface = _interface(addresses)
        try:
            await _ip(None, f"link add {interface} type veth peer name host netns {pid}")
        except UnavailableError:
            if (_INTERFACES / interface).exists():
                continue
            raise
        await _ip(pid, "link set host master switch up")
        await _ip(
            None,
            f"address add {addresses.host}/{addresses.prefix_length} dev {interface}",
            f"link set {interface} up",
            *(f"route add {node.pods} via {node.address}" for node in addresses.nodes()),
        )
        return addresses
    raise UnavailableError(f"{MAX_CLUSTERS} test clusters with a network run already")


def _interface(addresses: ClusterAddresses) -> str:
    """This machine's end of the cable to the switch."""
    return f"gpuloom{addresses.number}"


async def _ip(pid: int | None, *commands: str) -> None:
    """Commands of ip(8) in the network namespace of that process; None: in this machine's own."""
    inside = () if pid is None else _inside(pid)
    await _run((*inside, "ip", "-batch", "-"), "".join(f"{command}\n" for command in commands))


def _inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{pid}/ns/net", "--")


async def _run(command: Sequence[str], told: str = "") -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaints = await process.communicate(told.encode())
    if process.returncode:
        said = " | ".join(complaints.decode(errors="replace").split("\n")).strip(" |")
        raise UnavailableError(f"{' '.join(command)} ended with {process.returncode}: {said}")
