"""Prometheus and promtool from Debian's package, unpacked into the cache of the node tests.

The suite is the first whose Prometheus bounds the age of samples by query (2.43), which our client needs.

Nothing is installed. Where they can't be had, a test is skipped, or fails where it must run.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuloom.errors import NotFoundError
from tests.cluster.assets.build import cache_folder
from tests.cluster.binaries import REQUIRE_REAL
from tests.cluster.nodes.packages import apt_of_suite

PACKAGES = ("prometheus", "promtool")
SUITE = "trixie"
PROGRAMS = ("prometheus", "promtool")


def require_prometheus(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with both programs."""
    try:
        return fetch_prometheus(cache_folder(environ).parents[1] / "node-packages")
    except NotFoundError as error:
        reason = f"THE TESTS WITH PROMETHEUS DID NOT RUN: {error}"
        if environ.get(REQUIRE_REAL) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def fetch_prometheus(cache: Path) -> Path:
    """Raise NotFoundError if the package can't be had."""
    folder = cache / f"prometheus-{SUITE}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        apt = apt_of_suite(SUITE, Path(work))
        tree = apt.unpack([apt.download(package) for package in PACKAGES])
        complete = Path(work) / "complete"
        complete.mkdir()
        for name in PROGRAMS:
            shutil.copy2(tree / "usr/bin" / name, complete / name)
        _move(complete, folder)
    return folder


def _move(complete: Path, folder: Path) -> None:
    """At once or not at all: another run may be fetching the same."""
    try:
        complete.rename(folder)
    except OSError:
        if not folder.exists():
            raise
