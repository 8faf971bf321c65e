"""How a command reaches a Kubernetes API: by the given kubeconfig, that of a run here, or kubectl's."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from gpuloom.kube.access import KubeAccess

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        envvar="GPULOOM_KUBECONFIG",
        help="Kubeconfig file; else that of the run in --dir, else $KUBECONFIG, else ~/.kube/config.",
    ),
]
ContextOption = Annotated[
    str,
    typer.Option("--context", envvar="GPULOOM_KUBE_CONTEXT", help="The context of the kubeconfig to use."),
]
ASK_KUBECTL = "GPULOOM_ASK_KUBECTL"
"""Set by --kube: the cluster is kubectl's, even if something runs here."""


def find_access(kubeconfig: Path | None, context: str, directory: Path) -> "KubeAccess":
    """Raise KubeAccessError if there is none."""
    # Imported here: it brings HTTP and TLS along, and `gpuloom --help` shall be quick.
    from gpuloom.kube.access import load_access  # noqa: PLC0415

    found = kubeconfig or (None if os.environ.get(ASK_KUBECTL) else _of_run(directory))
    return load_access(found, os.environ, context=context or None)


def run_targets(kubeconfig: Path | None, context: str, directory: Path) -> dict[str, list[str]] | None:
    """Where the processes of each service of the run in `directory` serve metrics; None: ask a cluster."""
    from gpuloom.sim.mesh.run_directory import is_in_use  # noqa: PLC0415

    path = directory / "prometheus-targets.json"
    other = kubeconfig is not None or context or os.environ.get(ASK_KUBECTL)
    if other or not path.exists() or not is_in_use(directory):
        return None
    return {group["labels"]["job"]: group["targets"] for group in orjson.loads(path.read_bytes())}


def _of_run(directory: Path) -> Path | None:
    from gpuloom.sim.mesh.run_directory import is_in_use  # noqa: PLC0415

    path = directory / "kubeconfig"
    return path if path.exists() and is_in_use(directory) else None
