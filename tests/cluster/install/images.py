"""Our images for the nodes of a test, in two versions that differ by their tag alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloom.roster import ROSTER
from tests.cluster.binaries import REQUIRE_REAL
from tests.cluster.helm import ROOT

NAMES = ("cli", *(row.extra for row in ROSTER))
OLDER, NEWER = "install-test", "install-test-next"

_BUILT = ("certificates", *NAMES[1:])
"""As docker-compose.yml calls them: the certificates are made by the cli's image."""


def build_images(archive: Path) -> None:
    """An archive with both versions. Without Docker the test is skipped, or fails where it must run."""
    try:
        subprocess.run(("docker", "info"), check=True, capture_output=True, timeout=30)  # noqa: S607
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"THE INSTALLATION WAS NOT TESTED: docker info: {error}"
        if os.environ.get(REQUIRE_REAL) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    command = (sys.executable, "-m", "deploy.docker.build", *_BUILT)
    _run(*command, environ={**os.environ, "GPULOOM_VERSION": OLDER})
    references = [f"gpuloom/{name}:{tag}" for name in NAMES for tag in (OLDER, NEWER)]
    for name in NAMES:
        _run("docker", "tag", f"gpuloom/{name}:{OLDER}", f"gpuloom/{name}:{NEWER}")
    try:
        _run("docker", "save", "--output", str(archive), *references)
    finally:
        _run("docker", "image", "rm", *references)


def _run(*command: str, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(  # noqa: S603 - our own programs
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)}: {done.stderr[-3000:]}", pytrace=False)
