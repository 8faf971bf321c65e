"""The documentation's commands, run as they are written against `gpuloom run`.

A block that can't run there says so in a comment before it: `<!-- run by: FILE -->` names the test that runs
its commands elsewhere, `<!-- not run: REASON -->` why none does.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.binaries import require_binaries

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not {"adr", "reference"} & set(page.parts)),
]
LONGEST_START_S = 120.0
LONGEST_BLOCK_S = 120.0
_BLOCK = re.compile(
    r"(?:^[ ]*<!--[ ](?P<mark>run[ ]by|not[ ]run):[ ](?P<why>[^\n]+?)[ ]-->\n)?"
    r"^(?P<indent>[ ]*)```(?:bash|sh|console)?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_COMMAND = re.compile(
    r"^\s*(?:\$ )?(?:\S*/)?(?:gpuloom|kubectl|helm|docker|make|pip|python|export|curl) ", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    commands: str
    mark: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        if _COMMAND.search(found["text"]):
            line = text.count("\n", 0, found.start("text")) + 1
            yield Block(page, line, found["text"], found["mark"] or "", found["why"] or "")


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def test_a_block_that_another_test_runs_names_one_that_is_there() -> None:
    assert [
        str(block) for block in BLOCKS if block.mark == "run by" and not (ROOT / block.why).exists()
    ] == []


def test_most_blocks_run_here() -> None:
    """So that a change of how pages are written does not leave nothing to run."""
    assert len([block for block in BLOCKS if not block.mark]) >= len(BLOCKS) // 3


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory like a checkout in which `make run` goes on, and the environment of its user."""
    kubectl = require_binaries().path("kubectl")
    desk = tmp_path_factory.mktemp("desk")
    tools = desk / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "gpuloom").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuloom.cli.main "$@"\n')
    (tools / "gpuloom").chmod(0o755)
    (tools / "kubectl").symlink_to(kubectl)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    for name in ("examples", "charts", "deploy", "services"):
        (desk / name).symlink_to(ROOT / name)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(desk / "run" / "kubeconfig"),
    }
    command = [str(tools / "gpuloom"), "run", "--headless", "--no-faults", "--dir", "run"]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, cwd=desk, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            assert run.stderr is not None
            seen = []
            for line in run.stderr:
                seen.append(line)
                if re.search("placed=[1-9]", line):
                    break
            else:
                pytest.fail(f"gpuloom run ended: {''.join(seen)}")
            # What it goes on saying is read, so that it never waits for somebody who does.
            drain = subprocess.Popen(["/bin/cat"], stdin=run.stderr, stdout=subprocess.DEVNULL)
            agents = json.loads((desk / "run" / "agents.json").read_text())
            yield desk, environment | {"NODE": min(agents)}
            assert run.poll() is None, "gpuloom run ended while its commands were tried"
            run.send_signal(signal.SIGINT)
            assert run.wait(LONGEST_START_S) == 0
            drain.wait(LONGEST_START_S)
        finally:
            run.kill()


@pytest.mark.real
@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.mark], ids=str)
def test_the_commands_run_as_they_are_written(block: Block, desk: tuple[Path, dict[str, str]]) -> None:
    directory, environment = desk

    result = subprocess.run(  # noqa: S603 - what our own pages tell people to run
        ["/bin/bash", "-euo", "pipefail", "-c", block.commands],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_BLOCK_S,
        check=False,
    )

    assert result.returncode == 0, f"{block.commands}\n{result.stdout}\n{result.stderr}"
