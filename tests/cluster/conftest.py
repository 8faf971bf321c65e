"""Everything here needs the programs of a Kubernetes control plane; see `binaries`."""

import pytest

from tests.cluster.binaries import Binaries, require_binaries
from tests.cluster.shared import shared_control_plane

__all__ = ["binaries", "shared_control_plane"]


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return require_binaries()
