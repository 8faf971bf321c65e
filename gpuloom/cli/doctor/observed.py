"""What `gpuloom doctor` saw of a cluster, as values. A part that could not be read says why."""

from dataclasses import dataclass
from datetime import datetime

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.model.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a part is not known: no permission, no such kind, no answer."""

    why: str


Objects = tuple[JsonObject, ...] | Unread


@dataclass(frozen=True, slots=True)
class Right:
    """Whether the account of a service may do what the service can't do without."""

    service: str
    account: str
    verb: str
    resource: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class Certificate:
    """The one in a Secret of a service. `signed`: by the authority that is in the same Secret.

    `ends`: with its authority, if that ends first. `signers`: fingerprints of the authorities that signed it.
    `problem`: why there is no certificate; then nothing else is known.
    """

    secret: str
    ends: datetime
    signed: bool
    service: str = ""
    signers: frozenset[str] = frozenset()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """`problem` is empty if it answered; `gpu_series` counts what it has of a GPU's utilisation."""

    url: str
    problem: str = ""
    gpu_series: int = 0


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process of `gpuloom run`. `problem` is empty if it says that it is ready."""

    service: str
    place: str
    problem: str = ""


NOT_ASKED = Unread("not asked")


@dataclass(frozen=True, slots=True)
class Observed:
    """`now` is this machine's clock; `server_time` what the API server's showed at that moment."""

    now: datetime
    version: tuple[int, int] | Unread
    server_time: datetime | Unread = NOT_ASKED
    definitions: Objects = NOT_ASKED
    shipped: tuple[JsonObject, ...] = ()
    """The definitions that come with this version."""
    priority_classes: Objects = NOT_ASKED
    pods: Objects = NOT_ASKED
    """Those of GPULoom, in whichever namespace."""
    deployments: Objects = NOT_ASKED
    """Likewise."""
    nodes: Objects = NOT_ASKED
    node_leases: Objects = NOT_ASKED
    namespaces: Objects = NOT_ASKED
    webhooks: Objects = NOT_ASKED
    """GPULoom's configurations, mutating and validating."""
    admission_policies: Objects = NOT_ASKED
    admission_bindings: Objects = NOT_ASKED
    certificates: tuple[Certificate, ...] | Unread = NOT_ASKED
    rights: tuple[Right, ...] | Unread = NOT_ASKED
    facts: ClusterSnapshot | Unread = NOT_ASKED
    """As discovery tells them."""
    prometheus: Prometheus | Unread = NOT_ASKED
    run: tuple[RunProcess, ...] | None = None
    """Of the run that is looked at, whose services are processes and not pods; None: a cluster."""


def labels_of(obj: JsonObject) -> dict[str, str]:
    return metadata_of(obj).get("labels") or {}


def has_condition(obj: JsonObject, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == kind and item.get("status") == "True" for item in conditions)


def is_over(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
