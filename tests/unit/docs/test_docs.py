"""The documentation says what is so: commands exist with their options, references follow the code."""

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuloom.cli.main import build_app
from gpuloom.roster import ROSTER

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_BLOCK = re.compile(r"^ *```[a-z]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"^(?:\$ |kubectl (?=gpuloom)|(?:\S*/)?(?=gpuloom ))")
_STOPS = ("|", ">", "<", "&&", ";", "#", "&")


def said(page: Path) -> Iterator[str]:
    """Lines of code blocks, and code within lines."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        yield from (line.strip() for line in block.splitlines())
    yield from _INLINE.findall(_BLOCK.sub("", text))


def our_commands(page: Path) -> Iterator[list[str]]:
    for line in said(page):
        plain = _COMMAND.sub("", line)
        if plain.startswith("gpuloom ") and "…" not in plain:
            try:
                words = shlex.split(plain, comments=True)
            except ValueError:
                continue
            end = next((place for place, word in enumerate(words) if word.startswith(_STOPS)), len(words))
            yield words[1:end]


def problem_of(words: list[str]) -> str:
    """What is wrong with a command as it is written; its values are not judged."""
    command: Any = typer.main.get_command(build_app())
    for word in words:
        below = getattr(command, "commands", {})
        name = word.rstrip(",")
        if word.startswith("-"):
            known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            if word.partition("=")[0] not in known | {"-h", "--help"}:
                return f"{command.name} has no option {word}"
        elif name in below:
            command = below[name]
        elif below and word not in ("COMMAND", "X"):
            return f"there is no command {word}"
    return ""


_METRIC = re.compile(r"`((?:gpuloom|gpu_autoscaler|warp|controller)_\w+[a-z])[`{]")
_LISTED = re.compile(r"^\| `(\w+)`", re.MULTILINE)


def test_every_metric_that_a_page_names_is_in_the_reference() -> None:
    listed = set(_LISTED.findall((ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")))

    named = {name for page in PAGES for name in _METRIC.findall(page.read_text(encoding="utf-8"))}

    assert {"gpu_autoscaler_pending_pods", "controller_reconcile_errors"} <= listed
    assert [name for name in sorted(named) if not {name, name.removesuffix("_total")} & listed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_ours_exists_with_the_options_that_are_written(page: Path) -> None:
    problems = [
        f"{' '.join(words)}: {problem}" for words in our_commands(page) if (problem := problem_of(words))
    ]

    assert problems == []


def test_make_targets_and_files_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    lines = [(page, line) for page in PAGES for line in said(page)]

    makes = {(page.name, match[1]) for page, line in lines if (match := re.match(r"make ([a-z-]+)", line))}
    files = {
        (page.name, word)
        for page, line in lines
        for word in re.findall(r"(?<![\w/:.-])(?:charts|deploy|examples|protos|tests)/[\w./-]+", line)
    }

    assert {(page, target) for page, target in makes if target not in targets} == set()
    assert {(page, word) for page, word in files if not (ROOT / word.rstrip(".")).exists()} == set()


def test_the_references_are_what_the_code_says() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate_reference.py"))["pages"]()

    stale = [name for name, text in made.items() if (ROOT / "docs/reference" / name).read_text() != text]

    assert stale == [], "run make reference"


def test_the_metrics_that_published_dashboards_ask_for_are_in_the_reference() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text()

    assert "`controller_reconcile_errors` | counter, without `_total` |" in text
    assert "`controller_reconcile_duration` | histogram |" in text


def test_metrics_of_loops_and_processes_are_in_the_reference_under_the_names_they_have() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text()

    for loop in ("discovery_writer", "controller_workloads"):
        assert f"| `gpuloom_{loop}_steps` | counter | `result` |" in text
        assert f"| `gpuloom_{loop}_step_duration_seconds` | histogram |" in text
        assert f"| `gpuloom_{loop}_queue_depth` | gauge |" in text
    assert {f"gpuloom_{row.name}_event_loop_lag_seconds" for row in ROSTER} <= set(_LISTED.findall(text))


def test_every_alert_has_a_runbook_and_no_runbook_is_for_nothing() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate_runbooks.py"))

    assert set(made["steps"]()) == set(made["alerts"]())
    assert made["TARGET"].read_text() == made["page"](), "run make reference"
