"""Prometheus, promtool and amtool from Debian's packages, unpacked into the cache of the node tests.

The suite is the first whose Prometheus bounds the age of samples by query (2.43), which our client needs.

Nothing is installed. Where they can't be had, a test is skipped, or fails where it must run.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpuloom.errors import NotFoundError
from tests.cluster.assets.build import cache_folder
from tests.cluster.binaries import REQUIRE_REAL
from tests.cluster.nodes.packages import apt_of_suite

SUITE = "trixie"
_PACKAGES = {"prometheus": ("prometheus", "promtool"), "alertmanager": ("prometheus-alertmanager",)}
_PROGRAMS = {"prometheus": ("prometheus", "promtool"), "alertmanager": ("amtool",)}


def require_prometheus(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with Prometheus and promtool."""
    return _require("prometheus", environ)


def require_alertmanager(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with amtool."""
    return _require("alertmanager", environ)


def _require(name: str, environ: Mapping[str, str]) -> Path:
    folder = cache_folder(environ).parents[1] / "node-packages" / f"{name}-{SUITE}"
    try:
        return _fetch(folder, _PACKAGES[name], _PROGRAMS[name])
    except NotFoundError as error:
        reason = f"THE TESTS WITH PROMETHEUS DID NOT RUN: {error}"
        if environ.get(REQUIRE_REAL) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def _fetch(folder: Path, packages: Sequence[str], programs: Sequence[str]) -> Path:
    """Raise NotFoundError if a package can't be had."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        apt = apt_of_suite(SUITE, Path(work))
        tree = apt.unpack([apt.download(package) for package in packages])
        complete = Path(work) / "complete"
        complete.mkdir()
        for name in programs:
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
