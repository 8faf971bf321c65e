"""THE table of services: what there is, on which ports, who calls it, and what it calls outside the mesh.

Certificates, the embedded mesh, the command line's addresses and the defaults of the services' own settings
follow it, and tests hold the contracts, the extras and the import rules to it. A new service is its folder
and its row. It names services and never imports one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

GRPC = "grpc"
HTTP = "http"


class Kind(StrEnum):
    """How it runs: one on every node, one that leads beside warm standbys, several that all serve, or one."""

    DAEMON = "daemon"
    LEADER = "leader"
    REPLICAS = "replicas"
    SINGLE = "single"


class Outside(StrEnum):
    """What a service calls that is no service of ours; a NetworkPolicy has to let that out."""

    KUBERNETES_API = "kubernetes-api"
    CLOUD_METADATA = "cloud-metadata"
    """Of the machine it runs on: spot notices, and the credentials of a cloud's workload identity."""
    DCGM_EXPORTER = "dcgm-exporter"
    """NVIDIA's exporter on the same node."""
    POSTGRESQL = "postgresql"
    """Where data is not kept in a file."""
    CLOUD_API = "cloud-api"
    """Of clouds, over HTTPS: machines and price lists."""
    WEBHOOKS = "webhooks"
    """Alertmanager, and whoever else is told by HTTP."""
    SMTP = "smtp"
    PROMETHEUS = "prometheus"


class Embedded(StrEnum):
    """What only `gpuloom run` knows, written as {agents_file} in the values of `Service.embedded`."""

    AGENTS_FILE = "agents_file"
    CLOUD = "cloud"
    """Address of the simulated cloud."""
    INFERENCE = "inference"
    """Address of the played inference service."""
    DATABASES = "databases"
    """The directory of SQLite files."""
    CONSOLE_ACCESS = "console_access"
    """Everybody who reaches this machine's loopback: the simulated API reviews no tokens."""
    NAMESPACE = "namespace"
    """Where leases and what is remembered are kept: a fresh cluster has no namespace of ours."""
    USAGE_INTERVAL = "usage_interval"
    """How often an agent tells what its GPUs do: often, if they are few and somebody watches."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who calls services and is none. `certified`: it shows a certificate of that identity."""

    name: str
    certified: bool = True


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a service. `setting` moves it to another number, `host_setting` to another address."""

    name: str
    number: int
    setting: str
    callers: frozenset[str]
    host_setting: str


def grpc_port(number: int, *callers: str) -> Port:
    """The gRPC port, which everybody sets by the same variables; `callers` are those of all its RPCs."""
    return Port(GRPC, number, "GPULOOM_GRPC_PORT", frozenset(callers), "GPULOOM_GRPC_HOST")


STATUS_PORT = Port(HTTP, 8080, "GPULOOM_HTTP_PORT", frozenset({"prometheus"}), "GPULOOM_HTTP_HOST")
"""Plain HTTP with /metrics, /healthz and /readyz; every service has it. The kubelet probes it too."""


@dataclass(frozen=True, slots=True)
class Service:
    """One row.

    `short` is what people call it: its process in a run, its option of the command line, its address setting.
    `own_ports` are all but the status port. `embedded` are settings of `gpuloom run`, beside those that the
    table itself gives (ports, certificates, addresses of whom it calls).
    """

    name: str
    kind: Kind
    short: str
    own_ports: tuple[Port, ...]
    outside: frozenset[Outside] = frozenset({Outside.KUBERNETES_API})
    embedded: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return f"services.{self.name}"

    @property
    def extra(self) -> str:
        """Of the package: what this service needs beyond what all need."""
        return self.name.replace("_", "-")

    @property
    def ports(self) -> tuple[Port, ...]:
        return (*self.own_ports, STATUS_PORT)

    @property
    def address_setting(self) -> str:
        """The variable by which its callers are told where it is."""
        return f"GPULOOM_{self.short.upper()}_ADDRESS"

    def port(self, name: str) -> Port:
        return next(port for port in self.ports if port.name == name)

    def has_port(self, name: str) -> bool:
        return any(port.name == name for port in self.ports)

    def callers(self) -> frozenset[str]:
        """Of any port."""
        return frozenset().union(*(port.callers for port in self.ports))


@dataclass(frozen=True, slots=True)
class Roster:
    """Rows in an order in which nobody calls one that comes after it, so there is no cycle."""

    services: tuple[Service, ...]
    clients: tuple[Client, ...]

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))

    def __getitem__(self, name: str) -> Service:
        return next(service for service in self.services if service.name == name)

    def __iter__(self) -> Iterator[Service]:
        return iter(self.services)

    @property
    def identities(self) -> tuple[str, ...]:
        """Whoever has a certificate."""
        certified = (client.name for client in self.clients if client.certified)
        return (*(service.name for service in self.services), *certified)

    def called_by(self, caller: str) -> tuple[Service, ...]:
        """The services whose gRPC port this one may call."""
        return tuple(
            service
            for service in self.services
            if service.has_port(GRPC) and caller in service.port(GRPC).callers
        )


def _problems(roster: Roster) -> Iterator[str]:
    known = [client.name for client in roster.clients]
    names = [*known, *(service.name for service in roster.services)]
    for repeated in sorted({name for name in names if names.count(name) > 1}):
        yield f"{repeated} is there twice"
    earlier: set[str] = set()
    for service in roster.services:
        earlier.add(service.name)
        for caller in sorted(service.callers() - set(names)):
            yield f"{service.name} is called by {caller}, which is neither a service nor a client"
        for caller in sorted(service.callers() & earlier):
            yield f"{service.name} is called by {caller}, which comes before it"


ROSTER = Roster(
    services=(
        Service(
            name="node_agent",
            kind=Kind.DAEMON,
            short="agent",
            own_ports=(
                grpc_port(50052, "discovery", "cost_engine", "optimizer", "mig_controller", "cli"),
                Port(
                    "exporter",
                    9400,
                    "GPULOOM_AGENT_EXPORTER_PORT",
                    frozenset({"prometheus"}),
                    "GPULOOM_HTTP_HOST",
                ),
            ),
            outside=frozenset({Outside.KUBERNETES_API, Outside.CLOUD_METADATA, Outside.DCGM_EXPORTER}),
            embedded={
                "GPULOOM_AGENT_EXPORTER": "on",
                "GPULOOM_AGENT_USAGE_INTERVAL": "{usage_interval}",
                "GPULOOM_AGENT_USAGE_WINDOW": "10s",
            },
        ),
        Service(
            name="discovery",
            kind=Kind.REPLICAS,
            short="discovery",
            own_ports=(
                grpc_port(
                    50053,
                    "cost_engine",
                    "optimizer",
                    "scheduler_extender",
                    "autoscaler",
                    "webhook",
                    "mig_controller",
                    "console",
                    "cli",
                ),
            ),
            embedded={
                "GPULOOM_AGENTS_FILE": "{agents_file}",
                "GPULOOM_DISCOVERY_USAGE_INTERVAL": "2s",
                "GPULOOM_DISCOVERY_LEASE_NAMESPACE": "{namespace}",
            },
        ),
        Service(
            name="cost_engine",
            kind=Kind.LEADER,
            short="cost",
            own_ports=(
                grpc_port(
                    50055,
                    "optimizer",
                    "scheduler_extender",
                    "autoscaler",
                    "mig_controller",
                    "console",
                    "cli",
                ),
                Port(
                    "opencost",
                    9003,
                    "GPULOOM_COST_API_PORT",
                    frozenset({"opencost"}),
                    "GPULOOM_COST_API_HOST",
                ),
            ),
            outside=frozenset(
                {
                    Outside.KUBERNETES_API,
                    Outside.POSTGRESQL,
                    Outside.CLOUD_API,
                    Outside.CLOUD_METADATA,
                    Outside.WEBHOOKS,
                    Outside.SMTP,
                }
            ),
            embedded={
                "GPULOOM_DATABASE_URL": "sqlite:///{databases}/cost.db",
                "GPULOOM_COST_LEASE_NAMESPACE": "{namespace}",
                "GPULOOM_COST_COMPUTE_INTERVAL": "2s",
                # The simulated API reviews no tokens.
                "GPULOOM_COST_API_TOKEN_REVIEW": "false",
            },
        ),
        Service(
            name="optimizer",
            # Its cursors are in its database: two would read everything twice.
            kind=Kind.SINGLE,
            short="optimizer",
            own_ports=(grpc_port(50051, "scheduler_extender", "controller", "webhook", "console", "cli"),),
            outside=frozenset({Outside.KUBERNETES_API, Outside.POSTGRESQL}),
            embedded={
                "GPULOOM_DATABASE_URL": "sqlite:///{databases}/optimizer.db",
                # Whoever watches a run does not wait for minutes.
                "GPULOOM_OPTIMIZER_WASTE_AFTER": "40s",
                "GPULOOM_OPTIMIZER_WASTE_WINDOW": "2m",
                "GPULOOM_OPTIMIZER_WASTE_INTERVAL": "5s",
            },
        ),
        Service(
            name="scheduler_extender",
            kind=Kind.LEADER,
            short="extender",
            own_ports=(
                grpc_port(50058, "mig_controller", "autoscaler", "console", "cli"),
                Port(
                    "https",
                    8443,
                    "GPULOOM_EXTENDER_PORT",
                    frozenset({"kube_scheduler"}),
                    "GPULOOM_EXTENDER_HOST",
                ),
            ),
            embedded={
                # The simulated API has no admission.
                "GPULOOM_EXTENDER_ADMISSION_POLICIES": "none",
                # Where the demand that it learned is kept.
                "GPULOOM_EXTENDER_LEASE_NAMESPACE": "{namespace}",
            },
        ),
        Service(
            name="autoscaler",
            kind=Kind.LEADER,
            short="autoscaler",
            own_ports=(
                grpc_port(50056, "console", "cli"),
                Port(
                    "keda",
                    50059,
                    "GPULOOM_AUTOSCALER_KEDA_PORT",
                    frozenset({"keda"}),
                    "GPULOOM_AUTOSCALER_KEDA_HOST",
                ),
                Port(
                    "metrics-api",
                    6443,
                    "GPULOOM_AUTOSCALER_METRICS_API_PORT",
                    frozenset({"kube_apiserver"}),
                    "GPULOOM_AUTOSCALER_METRICS_API_HOST",
                ),
            ),
            outside=frozenset(
                {
                    Outside.KUBERNETES_API,
                    Outside.CLOUD_API,
                    Outside.CLOUD_METADATA,
                    Outside.POSTGRESQL,
                    Outside.PROMETHEUS,
                }
            ),
            embedded={
                "GPULOOM_AUTOSCALER_SIMULATED_CLOUD": "{cloud}",
                "GPULOOM_AUTOSCALER_LEASE_NAMESPACE": "{namespace}",
                "GPULOOM_AUTOSCALER_INFERENCE_METRICS_URL": "{inference}/metrics",
                "GPULOOM_AUTOSCALER_INFERENCE_INTERVAL": "2s",
                "GPULOOM_DATABASE_URL": "sqlite:///{databases}/autoscaler.db",
                # Whoever watches wants to see nodes come and go within minutes.
                "GPULOOM_AUTOSCALER_INTERVAL": "2s",
                "GPULOOM_AUTOSCALER_IDLE_WINDOW": "15s",
                "GPULOOM_AUTOSCALER_MINIMUM_AGE": "15s",
                "GPULOOM_AUTOSCALER_NODES_PER_HOUR": "1000",
            },
        ),
        Service(
            name="mig_controller",
            kind=Kind.LEADER,
            short="mig",
            own_ports=(grpc_port(50054, "console", "cli"),),
            embedded={
                "GPULOOM_MIG_LEASE_NAMESPACE": "{namespace}",
                # Whoever watches a run does not want to wait for it.
                "GPULOOM_MIG_IDLE_TTL": "30s",
            },
        ),
        Service(
            name="controller",
            kind=Kind.LEADER,
            short="controller",
            own_ports=(grpc_port(50057, "console", "cli"),),
            outside=frozenset({Outside.KUBERNETES_API, Outside.PROMETHEUS}),
            embedded={
                "GPULOOM_CONTROLLER_WASTE_INTERVAL": "5s",
                "GPULOOM_CONTROLLER_LEASE_NAMESPACE": "{namespace}",
                "GPULOOM_CONTROLLER_DEFAULT_IMAGE": "example/model:1",
            },
        ),
        Service(
            name="webhook",
            kind=Kind.REPLICAS,
            short="webhook",
            own_ports=(
                Port(
                    "https",
                    9443,
                    "GPULOOM_WEBHOOK_PORT",
                    frozenset({"kube_apiserver"}),
                    "GPULOOM_WEBHOOK_HOST",
                ),
            ),
        ),
        Service(
            name="console",
            kind=Kind.REPLICAS,
            short="console",
            own_ports=(
                Port(
                    "https",
                    8088,
                    "GPULOOM_CONSOLE_PORT",
                    frozenset({"browser", "oidc_proxy"}),
                    "GPULOOM_CONSOLE_HOST",
                ),
            ),
            outside=frozenset({Outside.KUBERNETES_API, Outside.PROMETHEUS}),
            embedded={
                "GPULOOM_CONSOLE_ACCESS": "{console_access}",
            },
        ),
    ),
    clients=(
        Client("cli"),
        # Programs of users: it reads what cli may read (rpc/identity.py).
        Client("client"),
        Client("oidc_proxy"),
        Client("browser", certified=False),
        Client("kube_scheduler"),
        Client("kube_apiserver", certified=False),
        Client("prometheus", certified=False),
        Client("opencost", certified=False),
        Client("keda"),
    ),
)
