"""A whole cluster on this machine, from an empty directory to running processes and back.

async with open_mesh(MeshOptions(), Path("run"), clock) as mesh:
    await mesh.start()
"""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.roster import ROSTER, Roster
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.audit import AuditReport, LiveAudit, audit
from gpuloom.sim.machines.cluster import plan_machines, with_mig_slices
from gpuloom.sim.mesh.admission import register_webhook
from gpuloom.sim.mesh.autoscaling import apply_policy
from gpuloom.sim.mesh.files import write_files
from gpuloom.sim.mesh.plan import (
    MeshOptions,
    MeshPlan,
    MeshPlanner,
    assign_ports,
    clean_environment,
    count_ports,
)
from gpuloom.sim.mesh.run_directory import open_run_directory
from gpuloom.sim.processes.ports import free_ports
from gpuloom.sim.processes.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class EmbeddedMesh:
    plan: MeshPlan
    supervisor: Supervisor
    clock: Clock
    autoscaling: bool = False

    async def start(self) -> None:
        """Raise StartError if a process can't be started."""
        await self.supervisor.start(self.plan.stages)
        if self.autoscaling and self.plan.has_late_agents:
            await apply_policy(self.plan.api_url, len(self.plan.machines), self.clock)
        if "webhook" in self.plan.ports.services:
            authority = tls_files(self.plan.directory.certificates, "webhook").ca_file
            address = self.plan.address("webhook", "https")
            await register_webhook(self.plan.api_url, address, authority, self.clock)

    def audit(self) -> AuditReport:
        """What the simulated kubelets recorded, judged without asking the product."""
        return audit(self.plan.directory.machines)

    def live_audit(self) -> LiveAudit:
        """The same while it runs."""
        return LiveAudit(self.plan.directory.machines)


@asynccontextmanager
async def open_mesh(
    options: MeshOptions, directory: Path, clock: Clock, roster: Roster = ROSTER
) -> AsyncIterator[EmbeddedMesh]:
    """Everything on disk is made anew. Raise InvalidRequestError or ConflictError if it can't be there."""
    machines = with_mig_slices(plan_machines(options.nodes, options.seed))
    nodes = [machine.node for machine in machines]
    with open_run_directory(directory, nodes) as run_directory:
        ports = assign_ports(nodes, free_ports(count_ports(nodes, roster), random.Random()), roster)
        environment = clean_environment(os.environ)
        plan = MeshPlanner(options, run_directory, machines, ports, environment, clock, roster).plan()
        write_files(plan, clock)
        async with Supervisor(clock, keep_open=(run_directory.lock_descriptor,)) as supervisor:
            yield EmbeddedMesh(plan, supervisor, clock, options.autoscaling)
