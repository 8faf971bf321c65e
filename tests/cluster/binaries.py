"""Where the Kubernetes programs are, and what a test does when they are not there.

Decides between the environment and the cache that `make kube-assets` fills; never builds anything itself.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuloom.errors import NotFoundError
from tests.cluster.assets.build import CONTROL_PLANE, cache_folder

REQUIRE_REAL = "GPULOOM_REQUIRE_REAL"
_VARIABLES = ("KUBE_ASSETS", "KUBEBUILDER_ASSETS")


@dataclass(frozen=True)
class Binaries:
    folder: Path

    def path(self, name: str) -> Path:
        """Raise NotFoundError if the folder does not have that program."""
        found = self.folder / name
        if not os.access(found, os.X_OK):
            builds = "`make kube-assets ARGS='--nodes --network --helm'` builds it"
            raise NotFoundError(f"{self.folder} has no program {name}; {builds}")
        return found


def find_binaries(environ: Mapping[str, str]) -> Binaries:
    """Raise NotFoundError, in one line, if a program of the control plane is missing."""
    named = next((environ[name] for name in _VARIABLES if environ.get(name)), None)
    binaries = Binaries(Path(named) if named else cache_folder(environ))
    for name in CONTROL_PLANE:
        binaries.path(name)
    return binaries


def require_binaries(environ: Mapping[str, str] = os.environ) -> Binaries:
    """For fixtures: without the programs the test is skipped, or fails where the cluster tests must run."""
    try:
        return find_binaries(environ)
    except NotFoundError as error:
        reason = f"THE CLUSTER TESTS DID NOT RUN: {error}, or set KUBE_ASSETS"
        if environ.get(REQUIRE_REAL) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
