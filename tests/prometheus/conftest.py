"""Everything here needs Prometheus; see `programs`."""

from pathlib import Path

import pytest

from tests.prometheus.programs import require_prometheus


@pytest.fixture(scope="session")
def programs() -> Path:
    return require_prometheus()
