"""The embedded mesh: which processes run on this machine, with which arguments, ports and environment.

Services come from the roster, and are named by their modules, never imported. Pure: what a plan needs on disk
is written by `files`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.model.node import NodeMode
from gpuloom.roster import GRPC, HTTP, ROSTER, Embedded, Kind, Roster, Service
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.mesh.run_directory import RunDirectory
from gpuloom.sim.processes.child_process import Probe, ProcessSpec
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import all_of, answers_ok, gpus_offered, nodes_registered

AGENT = ROSTER["node_agent"]
EXPORTER = "exporter"
CONSOLE = "console"
SINGLE_AGENTS = 2
"""So many agents are processes of their own, one of each mode, to be killed and silenced alone. The others
share processes: an interpreter for each would be most of the load."""
FLEET_SIZE = 32
# Whoever watches a small run wants to see GPUs at work.
LIVELY_NODES = 16
LIVELY_USAGE, QUIET_USAGE = "2s", "10s"
CLOUD_BOOT_DELAY = "15s"
# For leases and learned demand: a fresh cluster has no namespace of ours.
SERVICE_NAMESPACE = "default"

_AGENT_PORTS = tuple(port.name for port in AGENT.ports if port.name != GRPC)
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
)


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """`pods_per_minute` None: as many as keep the GPUs busy. `autoscaling`: a simulated cloud adds nodes."""

    nodes: int = 12
    seed: int = 1
    pods_per_minute: float | None = None
    max_publish_delay_s: float = 10.0
    autoscaling: bool = False


@dataclass(frozen=True, slots=True)
class MeshPorts:
    """`services`: of each but the agents, by service and name of the port.

    `agents_grpc`: of each agent. `agents`: the others of each agent process, by name; there may be fewer of
    these than agents.
    """

    api: int
    cloud: int
    inference: int
    services: Mapping[str, Mapping[str, int]]
    agents_grpc: tuple[int, ...]
    agents: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class MeshPlan:
    directory: RunDirectory
    machines: tuple[MachineSpec, ...]
    ports: MeshPorts
    stages: tuple[tuple[ProcessSpec, ...], ...]
    roster: Roster = ROSTER

    @property
    def api_url(self) -> str:
        return _url(self.ports.api)

    @property
    def has_late_agents(self) -> bool:
        """Whether somebody runs the agents of machines that the cloud brings."""
        return len(self.machines) > SINGLE_AGENTS + 1

    @property
    def cloud_url(self) -> str:
        return _url(self.ports.cloud)

    @property
    def extender_url(self) -> str:
        return f"https://{self.address('scheduler_extender', 'https')}"

    @property
    def console_url(self) -> str:
        return f"https://{self.address(CONSOLE, 'https')}/"

    def address(self, service: str, port: str = GRPC) -> str:
        return f"{HOST}:{self.ports.services[service][port]}"

    @property
    def metrics_urls(self) -> dict[str, str]:
        """By process; of the agents the first, because they are all alike."""
        ports = {row.short: self.ports.services[row.name][HTTP] for row in central(self.roster)}
        return {
            name: f"{_url(port)}/metrics"
            for name, port in {**ports, AGENT.short: self.ports.agents[0][HTTP]}.items()
        }

    @property
    def exporter_urls(self) -> tuple[str, ...]:
        """Where GPU metrics under DCGM's names are, one address per agent process."""
        return tuple(f"{_url(ports[EXPORTER])}/metrics" for ports in self.ports.agents)

    @property
    def modes(self) -> dict[str, NodeMode]:
        """By node name."""
        return {machine.node: machine.mode for machine in self.machines}


def central(roster: Roster) -> tuple[Service, ...]:
    """The services of which a run has one process each: all but the agents."""
    return tuple(row for row in roster if row.kind is not Kind.DAEMON)


def agent_groups(nodes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The nodes whose agents share a process."""
    alone, others = nodes[:SINGLE_AGENTS], nodes[SINGLE_AGENTS:]
    shared = (tuple(others[start : start + FLEET_SIZE]) for start in range(0, len(others), FLEET_SIZE))
    return (*((node,) for node in alone), *shared)


def agent_process(node: str) -> str:
    """The process of an agent that is alone in it."""
    return f"{AGENT.short}-{node}"


def count_ports(nodes: Sequence[str], roster: Roster = ROSTER) -> int:
    of_services = sum(len(row.ports) for row in central(roster))
    return 3 + of_services + len(nodes) + len(_AGENT_PORTS) * len(agent_groups(nodes))


def assign_ports(nodes: Sequence[str], ports: Sequence[int], roster: Roster = ROSTER) -> MeshPorts:
    left = iter(ports)
    return MeshPorts(
        api=next(left),
        cloud=next(left),
        inference=next(left),
        services={row.name: {port.name: next(left) for port in row.ports} for row in central(roster)},
        agents_grpc=tuple(next(left) for _ in nodes),
        agents=tuple({name: next(left) for name in _AGENT_PORTS} for _ in agent_groups(nodes)),
    )


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process needs to run at all, so that settings of the user's shell reach none of them."""
    kept = {name: environ[name] for name in _INHERITED if name in environ}
    return kept | {"GRPC_VERBOSITY": "ERROR", "GPULOOM_LOG_FORMAT": "json"}


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """For a cluster whose services run on other hosts: where to listen for them, where one of them is."""

    listen: str
    extender_url: str


@dataclass(frozen=True, slots=True)
class MeshPlanner:
    options: MeshOptions
    directory: RunDirectory
    machines: tuple[MachineSpec, ...]
    ports: MeshPorts
    environment: Mapping[str, str]
    clock: Clock
    roster: Roster = ROSTER
    elsewhere: Elsewhere | None = None

    def simulation(self) -> tuple[tuple[ProcessSpec, ...], tuple[ProcessSpec, ...]]:
        """What is not ours: the processes that the mesh needs, and those that need the mesh."""
        players = (self._scheduler(), self._workload(), self._inference())
        return (self._api(), self._cloud(), self._kubelets()), players

    def plan(self) -> MeshPlan:
        """Each stage needs the one before; whatever is in one stage starts together."""
        stages = (
            (self._api(), self._cloud()),
            (self._kubelets(), *self._agents()),
            # All at once: whoever finds another not yet there tries again.
            tuple(self._central(row) for row in central(self.roster)),
            (self._scheduler(),),
            (self._workload(), self._inference()),
        )
        return MeshPlan(self.directory, self.machines, self.ports, stages, self.roster)

    def _api(self) -> ProcessSpec:
        arguments = (
            *("--host", self._listen, "--port", str(self.ports.api)),
            *("--state", str(self.directory.api_state)),
        )
        return self._simulation(
            "kubernetes-api", "gpuloom.sim.kubeapi", arguments, self._answers(self.ports.api)
        )

    def _cloud(self) -> ProcessSpec:
        arguments = (
            *("--host", self._listen, "--port", str(self.ports.cloud)),
            *("--machines", str(self.directory.machines)),
            *("--boot-delay", CLOUD_BOOT_DELAY, "--seed", str(self.options.seed)),
        )
        ready = answers_ok(f"{_url(self.ports.cloud)}/healthz", self.clock)
        return self._simulation("cloud", "gpuloom.sim.cloud", arguments, ready)

    def _kubelets(self) -> ProcessSpec:
        arguments = (
            *("--api", self._api_url, "--machines", str(self.directory.machines)),
            *("--seed", str(self.options.seed)),
            *("--max-publish-delay", f"{self.options.max_publish_delay_s:g}s"),
        )
        ready = nodes_registered(self._api_url, len(self.machines), self.clock)
        return self._simulation("kubelets", "gpuloom.sim.kubelet", arguments, ready)

    def _scheduler(self) -> ProcessSpec:
        files = tls_files(self.directory.certificates, "kube_scheduler")
        arguments = (
            *("--api", self._api_url, "--extender", self._extender_url),
            *("--ca", str(files.ca_file), "--cert", str(files.cert_file), "--key", str(files.key_file)),
            *("--seed", str(self.options.seed), "--controllers"),
        )
        return self._simulation("scheduler", "gpuloom.sim.scheduler", arguments)

    def _workload(self) -> ProcessSpec:
        rate = self.options.pods_per_minute
        limit = () if rate is None else ("--rate", f"{rate:g}")
        arguments = ("--api", self._api_url, "--seed", str(self.options.seed), *limit)
        return self._simulation("workload", "gpuloom.sim.workloads.player", arguments)

    def _inference(self) -> ProcessSpec:
        arguments = (
            *("--api", self._api_url, "--host", self._listen, "--port", str(self.ports.inference)),
            *("--seed", str(self.options.seed)),
        )
        return self._simulation("inference", "gpuloom.sim.workloads.inference", arguments)

    def _agents(self) -> tuple[ProcessSpec, ...]:
        groups = agent_groups([machine.node for machine in self.machines])
        return tuple(
            self._agent(index, *group) if len(group) == 1 else self._fleet(index, group)
            for index, group in enumerate(groups)
        )

    def _agent(self, index: int, node: str) -> ProcessSpec:
        place = [machine.node for machine in self.machines].index(node)
        settings = {
            "GPULOOM_NODE_NAME": node,
            "GPULOOM_AGENT_DRIVER": "simulated",
            "GPULOOM_AGENT_MACHINE_DIR": str(self.directory.machines / node),
        }
        ports = {**self.ports.agents[index], GRPC: self.ports.agents_grpc[place]}
        return self._service(agent_process(node), AGENT, ports, settings)

    def _fleet(self, index: int, group: tuple[str, ...]) -> ProcessSpec:
        settings = {
            "GPULOOM_FLEET_MACHINES_DIR": str(self.directory.machines),
            "GPULOOM_FLEET_NODES": ",".join(group),
            "GPULOOM_AGENTS_FILE": str(self.directory.agents_file),
            # The first of them also runs the agents of machines that the cloud brings.
            "GPULOOM_FLEET_FOLLOW": "true" if index == SINGLE_AGENTS else "false",
        }
        spec = self._service(
            f"{AGENT.short}s-{index - SINGLE_AGENTS + 1}", AGENT, self.ports.agents[index], settings
        )
        return replace(spec, argv=(*spec.argv[:-1], f"{AGENT.module}.fleet"))

    def _central(self, row: Service) -> ProcessSpec:
        spec = self._service(row.short, row, self.ports.services[row.name], {})
        if row.name != "discovery" or spec.ready is None:
            return spec
        # What comes next counts on the GPUs that discovery writes to the nodes.
        offered = gpus_offered(self._api_url, len(self.machines), self.clock)
        return replace(spec, ready=all_of(spec.ready, offered))

    def _simulation(
        self, name: str, module: str, arguments: tuple[str, ...], ready: Probe | None = None
    ) -> ProcessSpec:
        return self._spec(name, (module, *arguments), self.environment, ready)

    def _service(
        self, name: str, row: Service, ports: Mapping[str, int], settings: Mapping[str, str]
    ) -> ProcessSpec:
        """`ports` are those that are this process's own."""
        # The certificate is the service's, whatever the process is called.
        files = tls_files(self.directory.certificates, row.name)
        environment = {
            **self.environment,
            "GPULOOM_KUBECONFIG": str(self.directory.kubeconfig),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            **{port.host_setting: HOST for port in row.ports},
            **{port.setting: str(ports[port.name]) for port in row.ports if port.name in ports},
            **self._peers(row),
            **{setting: value.format_map(self._known()) for setting, value in row.embedded.items()},
            **settings,
        }
        return self._spec(name, (row.module,), environment, self._answers(ports[HTTP]))

    def _peers(self, row: Service) -> dict[str, str]:
        """Where the services are that this one calls; agents are told by discovery, or by a file."""
        return {
            called.address_setting: f"{HOST}:{self.ports.services[called.name][GRPC]}"
            for called in self.roster.called_by(row.name)
            if called.kind is not Kind.DAEMON
        }

    def _known(self) -> dict[str, str]:
        lively = len(self.machines) <= LIVELY_NODES
        return {
            Embedded.AGENTS_FILE: str(self.directory.agents_file),
            Embedded.CLOUD: _url(self.ports.cloud),
            Embedded.INFERENCE: _url(self.ports.inference),
            Embedded.DATABASES: str(self.directory.databases),
            Embedded.CONSOLE_ACCESS: "loopback",
            Embedded.NAMESPACE: SERVICE_NAMESPACE,
            Embedded.USAGE_INTERVAL: LIVELY_USAGE if lively else QUIET_USAGE,
        }

    def _spec(
        self, name: str, command: tuple[str, ...], environment: Mapping[str, str], ready: Probe | None
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            # -P: a folder called `services` where the user happens to be must not be taken for ours.
            argv=(sys.executable, "-P", "-m", *command),
            log_path=self.directory.logs / f"{name}.log",
            environment=environment,
            working_dir=self.directory.path,
            ready=ready,
            critical=not name.startswith(AGENT.short),
        )

    def _answers(self, port: int) -> Probe:
        return answers_ok(f"{_url(port)}/readyz", self.clock)

    @property
    def _listen(self) -> str:
        return HOST if self.elsewhere is None else self.elsewhere.listen

    @property
    def _api_url(self) -> str:
        return _url(self.ports.api)

    @property
    def _extender_url(self) -> str:
        if self.elsewhere is not None:
            return self.elsewhere.extender_url
        return f"https://{HOST}:{self.ports.services['scheduler_extender']['https']}"


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"
