"""Images are built once for all tests of this folder."""

import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy.docker.build import IMAGES, ROOT, image
from tests.containers.engine import Project, require_engine


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """Reference of every image, by its name."""
    require_engine()
    done = subprocess.run(
        (sys.executable, "-m", "deploy.docker.build"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"make images: {done.stderr[-3000:]}", pytrace=False)
    sys.stdout.write(done.stdout)
    return {name: image(name) for name in IMAGES.values()}


@pytest.fixture(scope="module")
def project(images: dict[str, str]) -> Iterator[Project]:
    """The whole mesh, up and healthy."""
    project = Project(f"gpuloom-test-{secrets.token_hex(3)}")
    try:
        try:
            project.compose("up", "--detach", "--wait")
        except pytest.fail.Exception:
            # Compose says which container is not healthy, and not why.
            sys.stdout.write(project.compose("ps", "--all") + project.compose("logs", "--tail", "30"))
            raise
        yield project
    finally:
        project.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
