"""The processes: the Kubernetes API, fleets of agents, discovery, its readers. Nothing here starts one."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.mesh.plan import SERVICE_NAMESPACE, clean_environment
from gpuloom.sim.processes.child_process import Probe, ProcessSpec
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import answers_ok
from tests.bench.discovery_scale.ground import Fleet, Ground

DISCOVERY = "discovery"
STARTED_S = 300.0

_PROJECT = Path(__file__).parents[3]
# Machines of their own in production: here they must not take the processor from what is measured.
_NICE = ("nice", "-n", "10")
_PROBED_SAMPLE_INTERVAL = "1s"
_SAMPLE_INTERVAL = "10s"


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """`seen` is where it writes when it saw which change."""

    name: str
    identity: str
    with_usage: bool
    seen: Path


class Stage:
    def __init__(self, ground: Ground, clock: Clock) -> None:
        self._ground = ground
        self._clock = clock
        self.discovery_url = f"http://{HOST}:{ground.discovery_http_port}"
        self.readers = tuple(
            # Everybody but the last is a scheduler, which needs no usage.
            ReaderPlan(f"reader-{number}", "scheduler_extender", False, ground.folder / f"seen-{number}")
            if number < ground.size.readers
            else ReaderPlan(f"reader-{number}-usage", "cli", True, ground.folder / f"seen-{number}")
            for number in range(1, ground.size.readers + 1)
        )

    def api(self) -> ProcessSpec:
        arguments = ("--port", str(self._ground.api_port), "--state", str(self._ground.api_state))
        ready = answers_ok(f"http://{HOST}:{self._ground.api_port}/readyz", self._clock)
        return self._python("kubernetes-api", ("gpuloom.sim.kubeapi", *arguments), {}, ready)

    def fleets(self) -> Iterable[ProcessSpec]:
        return map(self._fleet, self._ground.fleets)

    def discovery(self) -> ProcessSpec:
        settings = {
            "GPULOOM_AGENTS_FILE": str(self._ground.agents_file),
            "GPULOOM_GRPC_PORT": str(self._ground.discovery_port),
            "GPULOOM_DISCOVERY_LEASE_NAMESPACE": SERVICE_NAMESPACE,
        }
        http_port = self._ground.discovery_http_port
        return self._service(DISCOVERY, "services.discovery", settings, http_port)

    def reader(self, plan: ReaderPlan) -> ProcessSpec:
        arguments = (
            *("--discovery", f"{HOST}:{self._ground.discovery_port}", "--seen", str(plan.seen)),
            *("--certificates", str(self._ground.certificates), "--identity", plan.identity),
            *(("--with-usage",) if plan.with_usage else ()),
        )

        async def synced() -> bool:
            return plan.seen.exists()

        return self._python(plan.name, ("tests.bench.discovery_scale.reader", *arguments), {}, synced)

    def _fleet(self, fleet: Fleet) -> ProcessSpec:
        settings = {
            "GPULOOM_FLEET_MACHINES_DIR": str(self._ground.machines_dir),
            "GPULOOM_FLEET_NODES": ",".join(fleet.nodes),
            "GPULOOM_AGENTS_FILE": str(self._ground.agents_file),
            "GPULOOM_AGENT_SAMPLE_INTERVAL": _PROBED_SAMPLE_INTERVAL if fleet.probed else _SAMPLE_INTERVAL,
        }
        return self._service(
            fleet.name, "services.node_agent.fleet", settings, fleet.http_port, () if fleet.probed else _NICE
        )

    def _service(
        self,
        name: str,
        module: str,
        settings: Mapping[str, str],
        http_port: int,
        prefix: tuple[str, ...] = (),
    ) -> ProcessSpec:
        files = tls_files(self._ground.certificates, module.split(".")[1])
        environment = {
            "GPULOOM_KUBECONFIG": str(self._ground.kubeconfig),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_HTTP_HOST": HOST,
            "GPULOOM_HTTP_PORT": str(http_port),
            **settings,
        }
        ready = answers_ok(f"http://{HOST}:{http_port}/readyz", self._clock)
        return self._python(name, (module,), environment, ready, prefix)

    def _python(
        self,
        name: str,
        command: tuple[str, ...],
        settings: Mapping[str, str],
        ready: Probe,
        prefix: tuple[str, ...] = (),
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=(*prefix, sys.executable, "-P", "-m", *command),
            log_path=self._ground.folder / f"{name}.log",
            environment=clean_environment(os.environ) | {"PYTHONPATH": str(_PROJECT), **settings},
            working_dir=self._ground.folder,
            ready=ready,
            start_timeout_s=STARTED_S,
        )
