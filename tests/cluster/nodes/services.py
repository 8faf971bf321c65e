"""Our services and kube-scheduler for real nodes whose GPUs are simulated machines.

The processes are those of `mesh` without its simulated kubelets. They end with the control plane.
"""

import random
from collections.abc import Sequence

import orjson

from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.cluster import create_machines
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.machines.machine import Machine
from gpuloom.sim.processes.ports import HOST, free_ports
from tests.cluster.control_plane import ControlPlane
from tests.cluster.mesh import ACCOUNTS, MeshLayout, assign_ports, count_ports
from tests.cluster.shared import account_of, apply_rights


async def lay_out_services(plane: ControlPlane, machines: Sequence[MachineSpec], clock: Clock) -> MeshLayout:
    """Accounts, certificates and machines for the services of these nodes, in the plane's directory."""
    await apply_rights(plane)
    accounts = {name: await plane.service_account_kubeconfig(*account_of(name)) for name in ACCOUNTS}
    nodes = tuple(machine.node for machine in machines)
    ports = free_ports(count_ports() + len(nodes), random.Random())
    layout = MeshLayout(
        directory=plane.directory / "mesh",
        logs=plane.directory / "logs",
        admin=plane.admin_kubeconfig,
        accounts=accounts,
        nodes=nodes,
        ports=assign_ports(ports),
        clock=clock,
    )
    issue_development_certificates(layout.certificates, CertificateOrder(), clock)
    create_machines(layout.machines, machines)
    agents = {node: f"{HOST}:{port}" for node, port in zip(nodes, ports[count_ports() :], strict=True)}
    layout.agents_file.write_bytes(orjson.dumps(agents))
    return layout


async def start_services(plane: ControlPlane, layout: MeshLayout) -> None:
    """Return when all are ready. Raise StartError if one does not come up."""
    await plane.supervisor.start([[layout.fleet()], [layout.discovery(), layout.extender()]])
    await plane.start_scheduler(layout.scheduler_config(OWN_SCHEDULER))


def machines_of(layout: MeshLayout) -> tuple[Machine, ...]:
    return tuple(Machine.open(layout.machines / node) for node in layout.nodes)
