"""What a killed run leaves behind is cleaned up by the next one; what lives is left alone."""

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuloom.errors import ConflictError
from tests.cluster.nodes.cgroups import create_subtree, hierarchies
from tests.cluster.nodes.claims import Claim, claim_home, give_up_home
from tests.cluster.nodes.programs import require_machine

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _machine() -> None:
    require_machine()


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    """Its own, with names that no other run has, because control groups are the machine's."""
    return tmp_path / "homes"


@pytest.fixture
def key(tmp_path: Path) -> str:
    return f"test-{os.getpid()}-{tmp_path.name[-8:]}"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:  # noqa: S607
        yield process
        process.kill()


def _groups(claim: Claim) -> list[Path]:
    return [top / claim.cgroup for top in hierarchies() if (top / claim.cgroup).exists()]


def test_processes_groups_and_folder_of_a_killed_run_are_gone(
    homes: Path, key: str, sleeper: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    left = claim_home(key, homes)
    create_subtree(left.cgroup)
    (_groups(left)[0] / "cgroup.procs").write_text(str(sleeper.pid))
    command = ["tail", "-f", "--retry", f"{left.home}/log"]
    named = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603
    os.close(left.descriptor)

    with caplog.at_level(logging.WARNING):
        mine = claim_home(f"{key}-next", homes)

    assert (sleeper.wait(timeout=10), named.wait(timeout=10)) == (-9, -9)
    assert (_groups(left), left.home.exists()) == ([], False)
    assert "cleaned up after a node that an earlier run left behind" in caplog.text
    give_up_home(mine)


def test_a_living_node_is_left_alone_and_its_name_refused(homes: Path, key: str) -> None:
    living = claim_home(key, homes)

    with pytest.raises(ConflictError, match=key):
        claim_home(key, homes)

    assert living.home.exists()
    give_up_home(living)
    assert not living.home.exists()
