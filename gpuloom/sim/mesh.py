"""The embedded mesh: which processes run on this machine, with which arguments, ports and environment.

Planning is pure; `write_files` alone touches the disk. Services are named by their modules, never imported.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
import yaml

from gpuloom.model.node import NodeMode
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.child_process import Probe, ProcessSpec
from gpuloom.sim.cluster import create_machines
from gpuloom.sim.hardware import MachineSpec
from gpuloom.sim.ports import HOST
from gpuloom.sim.probes import all_of, answers_ok, gpus_offered, nodes_registered
from gpuloom.sim.run_directory import RunDirectory

MOST_SINGLE_AGENTS = 16
"""Up to so many nodes every agent is a process of its own; above, interpreters would be most of the load."""
# Whoever watches a small run wants to see GPUs at work.
LIVELY_USAGE = "2s"
# For leases and learned demand: a fresh cluster has no namespace of ours.
SERVICE_NAMESPACE = "default"
FLEET_SIZE = 32

_SHARED_PORTS = 6
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
    """`pods_per_minute` None: as many as keep the GPUs busy."""

    nodes: int = 12
    seed: int = 1
    pods_per_minute: float | None = None
    max_publish_delay_s: float = 10.0


@dataclass(frozen=True, slots=True)
class MeshPorts:
    api: int
    extender_https: int
    extender_grpc: int
    extender_http: int
    discovery_grpc: int
    discovery_http: int
    agents_grpc: tuple[int, ...]
    agents_http: tuple[int, ...]
    agents_exporter: tuple[int, ...]
    """Of both one per agent process, of which there may be fewer than agents."""


@dataclass(frozen=True, slots=True)
class MeshPlan:
    directory: RunDirectory
    machines: tuple[MachineSpec, ...]
    ports: MeshPorts
    stages: tuple[tuple[ProcessSpec, ...], ...]

    @property
    def api_url(self) -> str:
        return _url(self.ports.api)

    @property
    def extender_url(self) -> str:
        return f"https://{HOST}:{self.ports.extender_https}"

    @property
    def extender_grpc(self) -> str:
        return f"{HOST}:{self.ports.extender_grpc}"

    @property
    def discovery_grpc(self) -> str:
        return f"{HOST}:{self.ports.discovery_grpc}"

    @property
    def metrics_urls(self) -> dict[str, str]:
        """By process; of the agents the first, because they are all alike."""
        ports = {
            "extender": self.ports.extender_http,
            "discovery": self.ports.discovery_http,
            "agent": self.ports.agents_http[0],
        }
        return {name: f"{_url(port)}/metrics" for name, port in ports.items()}

    @property
    def exporter_urls(self) -> tuple[str, ...]:
        """Where GPU metrics under DCGM's names are, one address per agent process."""
        return tuple(f"{_url(port)}/metrics" for port in self.ports.agents_exporter)

    @property
    def modes(self) -> dict[str, NodeMode]:
        """By node name."""
        return {machine.node: machine.mode for machine in self.machines}


def agent_groups(nodes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The nodes whose agents share a process."""
    size = 1 if len(nodes) <= MOST_SINGLE_AGENTS else FLEET_SIZE
    return tuple(tuple(nodes[start : start + size]) for start in range(0, len(nodes), size))


def count_ports(nodes: Sequence[str]) -> int:
    return _SHARED_PORTS + len(nodes) + 2 * len(agent_groups(nodes))


def assign_ports(nodes: Sequence[str], ports: Sequence[int]) -> MeshPorts:
    api, extender_https, extender_grpc, extender_http, discovery_grpc, discovery_http, *agents = ports
    processes = len(agent_groups(nodes))
    http = len(nodes)
    return MeshPorts(
        api=api,
        extender_https=extender_https,
        extender_grpc=extender_grpc,
        extender_http=extender_http,
        discovery_grpc=discovery_grpc,
        discovery_http=discovery_http,
        agents_grpc=tuple(agents[: len(nodes)]),
        agents_http=tuple(agents[http : http + processes]),
        agents_exporter=tuple(agents[http + processes :]),
    )


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process needs to run at all, so that settings of the user's shell reach none of them."""
    kept = {name: environ[name] for name in _INHERITED if name in environ}
    return kept | {"GRPC_VERBOSITY": "ERROR", "GPULOOM_LOG_FORMAT": "json"}


@dataclass(frozen=True, slots=True)
class MeshPlanner:
    options: MeshOptions
    directory: RunDirectory
    machines: tuple[MachineSpec, ...]
    ports: MeshPorts
    environment: Mapping[str, str]
    clock: Clock

    def plan(self) -> MeshPlan:
        """Each stage needs the one before; whatever is in one stage starts together."""
        stages = (
            (self._api(),),
            (self._kubelets(), *self._agents()),
            (self._discovery(), self._extender()),
            (self._scheduler(),),
            (self._workload(),),
        )
        return MeshPlan(self.directory, self.machines, self.ports, stages)

    def _api(self) -> ProcessSpec:
        arguments = ("--port", str(self.ports.api), "--state", str(self.directory.api_state))
        return self._simulation(
            "kubernetes-api", "gpuloom.sim.kubeapi", arguments, self._answers(self.ports.api)
        )

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
            *("--api", self._api_url, "--extender", f"https://{HOST}:{self.ports.extender_https}"),
            *("--ca", str(files.ca_file), "--cert", str(files.cert_file), "--key", str(files.key_file)),
            *("--seed", str(self.options.seed), "--controllers"),
        )
        return self._simulation("scheduler", "gpuloom.sim.scheduler", arguments)

    def _workload(self) -> ProcessSpec:
        rate = self.options.pods_per_minute
        limit = () if rate is None else ("--rate", f"{rate:g}")
        arguments = ("--api", self._api_url, "--seed", str(self.options.seed), *limit)
        return self._simulation("workload", "gpuloom.sim.workload", arguments)

    def _agents(self) -> tuple[ProcessSpec, ...]:
        groups = agent_groups([machine.node for machine in self.machines])
        make = self._agent if len(groups) == len(self.machines) else self._fleet
        return tuple(make(index, group) for index, group in enumerate(groups))

    def _agent(self, index: int, group: tuple[str, ...]) -> ProcessSpec:
        node = group[0]
        settings = {
            "GPULOOM_NODE_NAME": node,
            "GPULOOM_AGENT_DRIVER": "simulated",
            "GPULOOM_AGENT_MACHINE_DIR": str(self.directory.machines / node),
            "GPULOOM_GRPC_PORT": str(self.ports.agents_grpc[index]),
            "GPULOOM_AGENT_USAGE_INTERVAL": LIVELY_USAGE,
            **self._exporter(index),
        }
        http_port = self.ports.agents_http[index]
        return self._service(f"agent-{node}", "services.node_agent", settings, http_port)

    def _fleet(self, index: int, group: tuple[str, ...]) -> ProcessSpec:
        settings = {
            "GPULOOM_FLEET_MACHINES_DIR": str(self.directory.machines),
            "GPULOOM_FLEET_NODES": ",".join(group),
            "GPULOOM_AGENTS_FILE": str(self.directory.agents_file),
            **self._exporter(index),
        }
        name, http_port = f"agents-{index + 1}", self.ports.agents_http[index]
        return self._service(name, "services.node_agent.fleet", settings, http_port)

    def _exporter(self, index: int) -> dict[str, str]:
        return {
            "GPULOOM_AGENT_EXPORTER": "on",
            "GPULOOM_AGENT_EXPORTER_PORT": str(self.ports.agents_exporter[index]),
        }

    def _discovery(self) -> ProcessSpec:
        settings = {
            "GPULOOM_AGENTS_FILE": str(self.directory.agents_file),
            "GPULOOM_GRPC_PORT": str(self.ports.discovery_grpc),
            "GPULOOM_DISCOVERY_USAGE_INTERVAL": LIVELY_USAGE,
            "GPULOOM_DISCOVERY_LEASE_NAMESPACE": SERVICE_NAMESPACE,
        }
        spec = self._service("discovery", "services.discovery", settings, self.ports.discovery_http)
        # What comes next counts on the GPUs that discovery writes to the nodes.
        offered = gpus_offered(self._api_url, len(self.machines), self.clock)
        return replace(spec, ready=all_of(self._answers(self.ports.discovery_http), offered))

    def _extender(self) -> ProcessSpec:
        settings = {
            "GPULOOM_EXTENDER_HOST": HOST,
            # The simulated API has no admission.
            "GPULOOM_EXTENDER_ADMISSION_POLICIES": "none",
            "GPULOOM_EXTENDER_PORT": str(self.ports.extender_https),
            "GPULOOM_DISCOVERY_ADDRESS": f"{HOST}:{self.ports.discovery_grpc}",
            "GPULOOM_GRPC_PORT": str(self.ports.extender_grpc),
            # Where the demand that it learned is kept.
            "GPULOOM_EXTENDER_LEASE_NAMESPACE": SERVICE_NAMESPACE,
        }
        http_port = self.ports.extender_http
        return self._service("extender", "services.scheduler_extender", settings, http_port)

    def _simulation(
        self, name: str, module: str, arguments: tuple[str, ...], ready: Probe | None = None
    ) -> ProcessSpec:
        return self._spec(name, (module, *arguments), self.environment, ready)

    def _service(self, name: str, module: str, settings: Mapping[str, str], http_port: int) -> ProcessSpec:
        # The certificate is the service's, whatever the process is called.
        identity = module.split(".")[1]
        files = tls_files(self.directory.certificates, identity)
        environment = {
            **self.environment,
            "GPULOOM_KUBECONFIG": str(self.directory.kubeconfig),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_HTTP_HOST": HOST,
            "GPULOOM_HTTP_PORT": str(http_port),
            **settings,
        }
        return self._spec(name, (module,), environment, self._answers(http_port))

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
            critical=not name.startswith("agent"),
        )

    def _answers(self, port: int) -> Probe:
        return answers_ok(f"{_url(port)}/readyz", self.clock)

    @property
    def _api_url(self) -> str:
        return _url(self.ports.api)


def write_files(plan: MeshPlan, clock: Clock) -> None:
    """Certificates, machines, and the files that tell the processes of each other."""
    directory = plan.directory
    issue_development_certificates(directory.certificates, CertificateOrder(), clock)
    create_machines(directory.machines, plan.machines)
    addresses = {
        machine.node: f"{HOST}:{port}"
        for machine, port in zip(plan.machines, plan.ports.agents_grpc, strict=True)
    }
    directory.agents_file.write_bytes(orjson.dumps(addresses, option=orjson.OPT_INDENT_2))
    directory.endpoints_file.write_bytes(orjson.dumps(_endpoints(plan), option=orjson.OPT_INDENT_2))
    directory.kubeconfig.write_text(yaml.safe_dump(kubeconfig(plan.api_url)), encoding="utf-8")


def _endpoints(plan: MeshPlan) -> dict[str, object]:
    """Where the run's services are, for other commands and for people."""
    files = tls_files(plan.directory.certificates, "cli")
    return {
        "discovery": plan.discovery_grpc,
        "scheduler_extender": plan.extender_grpc,
        "certificate": str(files.cert_file),
        "key": str(files.key_file),
        "authority": str(files.ca_file),
        "kubernetes": plan.api_url,
        "metrics": plan.metrics_urls,
        "gpu_metrics": plan.exporter_urls,
    }


def kubeconfig(api_url: str) -> dict[str, object]:
    name = "gpuloom-simulated"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": api_url}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": ""}}],
        "current-context": name,
    }


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"
