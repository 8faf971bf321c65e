"""Helm as a user runs it, from the shell: rendering, and releases on a control plane of these tests."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.errors import GpuloomError, NotFoundError
from tests.cluster.assets.build import HELM, PROGRAMS
from tests.cluster.binaries import REQUIRE_REAL, find_binaries

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
"""The link at the top, as the product documents print it."""
_TIMEOUT_S = 400.0
"""More than helm itself waits, which then says for what."""

Document = dict[str, Any]


class HelmError(GpuloomError):
    """What helm said, without what it says of links."""


@dataclass(frozen=True)
class Helm:
    """`kubeconfig` None: it renders without a cluster."""

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def run(self, *arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
        """What it writes. Raise HelmError if it fails."""
        environment = {"HOME": str(self.home), "PATH": os.environ.get("PATH", "")}
        if self.kubeconfig is not None:
            environment["KUBECONFIG"] = str(self.kubeconfig)
        result = subprocess.run(  # noqa: S603 - our own program
            (str(self.program), *arguments),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=environment,
            cwd=ROOT,
        )
        if result.returncode:
            raise HelmError(_without_links(result.stderr))
        return result.stdout

    def render(self, chart: str, *arguments: str, release: str = "gpuloom") -> list[Document]:
        """The objects of a release, as `helm template` prints them."""
        namespaced = "--namespace" in arguments
        where = () if namespaced else ("--namespace", "gpuloom-system")
        version = PROGRAMS["kube-apiserver"].version()
        text = self.run("template", release, f"charts/{chart}", "--kube-version", version, *where, *arguments)
        return [document for document in yaml.safe_load_all(text) if document]


def require_helm(home: Path, kubeconfig: Path | None = None, environ: Mapping[str, str] = os.environ) -> Helm:
    """For fixtures: without helm the test is skipped, or fails where the cluster tests must run."""
    try:
        return Helm(find_binaries(environ).path(HELM), home, kubeconfig)
    except NotFoundError as error:
        reason = f"THE TESTS WITH HELM DID NOT RUN: {error}"
        if environ.get(REQUIRE_REAL) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def set_values(values: Mapping[str, object]) -> Sequence[str]:
    return [argument for name, value in values.items() for argument in ("--set", f"{name}={value}")]


def _without_links(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and "found symbolic link" not in line]
    return "\n".join(line for line in lines if "Use --debug flag" not in line)
