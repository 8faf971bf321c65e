"""The settings of every service that talks to Kubernetes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuloom.kube.access import KubeAccess, load_access
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import existing_file


@dataclass(frozen=True)
class KubeConfig:
    kubeconfig: Path | None = setting(
        "GPULOOM_KUBECONFIG",
        default=None,
        parse=existing_file,
        help="Kubeconfig file; else $KUBECONFIG, else the pod's service account, else ~/.kube/config",
    )

    def access(self, environ: Mapping[str, str]) -> KubeAccess:
        return load_access(self.kubeconfig, environ)
