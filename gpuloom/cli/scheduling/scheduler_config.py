"""`gpuloom scheduler-config`: the configuration by which kube-scheduler calls GPULoom's extender.

Decides what kube-scheduler is told; `render_scheduler_config` is pure, and the file in deploy/scheduler is
its answer to the default options, the one beside it its answer to `--replace-default`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
import yaml

from gpuloom.catalog import load_catalog
from gpuloom.errors import InvalidRequestError
from gpuloom.rpc.identity import server_name

DEFAULT_SCHEDULER = "default-scheduler"
OWN_SCHEDULER = "gpuloom-scheduler"
CONTROL_PLANE_KUBECONFIG = "/etc/kubernetes/scheduler.conf"
"""Where kubeadm puts the one of the cluster's own scheduler."""

# One for all verbs. Binding waits for the API server, up to the extender's own limit of 4 s; the others
# answer in milliseconds, and an extender that is gone or not ready refuses at once.
TIMEOUT_S = 5
# kube-scheduler's own scores of a node add up to at most 1,200, and one step of an extender's 0 to 10 counts
# ten times its weight: at 200 the better node for GPUs wins, and the own scores decide between equals.
WEIGHT = 200
# Its default of 50 requests a second is less than a quarter of the pods it can place.
CLIENT_QPS = 1000
CLIENT_BURST = 2000

_HEAD = """\
# How kube-scheduler calls GPULoom's extender. Written by `gpuloom scheduler-config`; change it there.
#
# ignorable is false: while the extender can't answer, GPU pods wait. Were it true, kube-scheduler would place
# and bind them without knowing which GPUs are free.
# managedResources match by their exact name, so every MIG profile is listed; other pods never reach the
# extender. All nodes are scored, because the best one for a GPU pod may be any of them.
"""


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """Files as kube-scheduler sees them. The certificate's identity must be kube_scheduler."""

    certificate: str = "/etc/gpuloom/tls/tls.crt"
    key: str = "/etc/gpuloom/tls/tls.key"
    authority: str = "/etc/gpuloom/tls/ca.crt"


@dataclass(frozen=True, slots=True)
class SchedulerConfigOptions:
    """`scheduler_name` is what pods name; DEFAULT_SCHEDULER replaces the cluster's own scheduler.

    `kubeconfig` is empty inside a pod, where the service account is used. `namespace` is where GPULoom is
    installed, and the scheduler's own lease.
    """

    extender_url: str = "https://gpuloom-scheduler-extender.gpuloom-system.svc:8443"
    tls: TlsPaths = TlsPaths()
    kubeconfig: str = ""
    scheduler_name: str = OWN_SCHEDULER
    weight: int = WEIGHT
    namespace: str = "gpuloom-system"


REPLACE_DEFAULT = SchedulerConfigOptions(
    kubeconfig=CONTROL_PLANE_KUBECONFIG, scheduler_name=DEFAULT_SCHEDULER
)


def render_scheduler_config(options: SchedulerConfigOptions) -> str:
    """A KubeSchedulerConfiguration as YAML."""
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": _client_connection(options),
        "leaderElection": _leader_election(options),
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": options.scheduler_name}],
        "extenders": [_extender(options)],
    }
    return _HEAD + yaml.dump(document, Dumper=_PlainDumper, sort_keys=False, width=110)


def _client_connection(options: SchedulerConfigOptions) -> dict[str, Any]:
    connection: dict[str, Any] = {"qps": CLIENT_QPS, "burst": CLIENT_BURST}
    return ({"kubeconfig": options.kubeconfig} if options.kubeconfig else {}) | connection


def _leader_election(options: SchedulerConfigOptions) -> dict[str, Any]:
    """The replacement takes the lease of the scheduler it replaces, so that never both work."""
    replaces = options.scheduler_name == DEFAULT_SCHEDULER
    return {
        "leaderElect": True,
        "resourceName": "kube-scheduler" if replaces else options.scheduler_name,
        "resourceNamespace": "kube-system" if replaces else options.namespace,
    }


def _extender(options: SchedulerConfigOptions) -> dict[str, Any]:
    """One entry for all verbs: kube-scheduler refuses a second one that manages the same resources."""
    return {
        "urlPrefix": options.extender_url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        # Without it a pod that filter refused could evict others and still not fit.
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": options.weight,
        "httpTimeout": f"{TIMEOUT_S}s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "enableHTTPS": True,
        "tlsConfig": {
            "serverName": server_name("scheduler_extender"),
            "certFile": options.tls.certificate,
            "keyFile": options.tls.key,
            "caFile": options.tls.authority,
        },
        "managedResources": [
            {"name": name, "ignoredByScheduler": False} for name in load_catalog().managed_resources()
        ],
    }


class _PlainDumper(yaml.SafeDumper):
    """Without anchors, which would make a reader look things up elsewhere."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def register(app: typer.Typer) -> None:
    app.command("scheduler-config", short_help="Print kube-scheduler's configuration.")(scheduler_config)


_DEFAULTS = SchedulerConfigOptions()
_NameOption = Annotated[
    str, typer.Option("--scheduler-name", help=f"What pods name; {DEFAULT_SCHEDULER} replaces the cluster's.")
]
_KubeconfigOption = Annotated[
    str, typer.Option("--kubeconfig", help="Of kube-scheduler; none: its pod's service account.")
]
_ReplaceOption = Annotated[
    bool,
    typer.Option(
        "--replace-default",
        help=f"For the cluster's own kube-scheduler: {DEFAULT_SCHEDULER}, with {CONTROL_PLANE_KUBECONFIG} "
        "unless --kubeconfig names another.",
    ),
]


def scheduler_config(  # noqa: PLR0913, PLR0917 - one for each option
    extender_url: Annotated[
        str,
        typer.Option(
            "--extender-url", help="Where kube-scheduler reaches the extender; default: in the namespace."
        ),
    ] = "",
    tls_folder: Annotated[
        str, typer.Option("--tls-folder", help="Folder with tls.crt, tls.key and ca.crt for kube-scheduler.")
    ] = "/etc/gpuloom/tls",
    kubeconfig: _KubeconfigOption = "",
    scheduler_name: _NameOption = OWN_SCHEDULER,
    replace_default: _ReplaceOption = False,
    weight: Annotated[
        int, typer.Option(min=1, max=10_000, help="How much the extender's score counts.")
    ] = WEIGHT,
    namespace: Annotated[
        str, typer.Option("--namespace", help="Where GPULoom is installed.")
    ] = _DEFAULTS.namespace,
) -> None:
    """Print a KubeSchedulerConfiguration that makes kube-scheduler ask GPULoom about GPU pods."""
    if replace_default:
        if scheduler_name not in {OWN_SCHEDULER, DEFAULT_SCHEDULER}:
            raise InvalidRequestError("--replace-default and --scheduler-name exclude each other")
        scheduler_name = DEFAULT_SCHEDULER
        kubeconfig = kubeconfig or CONTROL_PLANE_KUBECONFIG
    tls = TlsPaths(*(f"{tls_folder.rstrip('/')}/{name}" for name in ("tls.crt", "tls.key", "ca.crt")))
    url = extender_url or _DEFAULTS.extender_url.replace(_DEFAULTS.namespace, namespace)
    options = SchedulerConfigOptions(url, tls, kubeconfig, scheduler_name, weight, namespace)
    typer.echo(render_scheduler_config(options), nl=False)
