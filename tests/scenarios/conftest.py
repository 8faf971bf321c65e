"""What the scenarios share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def run_directory() -> Iterator[Path]:
    """Not pytest's own: below its long names a machine's socket would not fit, and would go elsewhere."""
    with tempfile.TemporaryDirectory(prefix="gpuloom-test-") as directory:
        yield Path(directory).resolve() / "run"
