"""Everything here needs helm; see `tests/cluster/helm.py`."""

import pytest

from tests.cluster.helm import Helm, require_helm
from tests.cluster.shared import shared_control_plane

__all__ = ["shared_control_plane"]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return require_helm(tmp_path_factory.mktemp("helm"))
