"""What promtool says of a full exposition.

It parses without an error. It can't keep all of promtool's rules of style, because the names are NVIDIA's:
exactly those complaints are expected, and none is left once the names are replaced.
"""

import re
import subprocess
from pathlib import Path

import pytest

from services.node_agent.exporter.core.exposition import NodePage, PageFormat, device_block, exposition
from services.node_agent.exporter.core.families import DEFAULT_FAMILIES, Kind
from tests.unit.node_agent.exporter.builders import a_full_picture

pytestmark = pytest.mark.real

COUNTERS = {family.name for family in DEFAULT_FAMILIES if family.kind is Kind.COUNTER}
_COMPLAINED = 3


def a_full_exposition() -> bytes:
    pages = [
        NodePage(name, True, device_block(a_full_picture(name), PageFormat())) for name in ("n1", 'n"2\\')
    ]
    return exposition([*pages, NodePage("n3", False, note="shown elsewhere")], PageFormat())


def check(programs: Path, text: bytes) -> tuple[int, set[str]]:
    """How promtool ended, and what it complained about."""
    done = subprocess.run(  # noqa: S603
        [programs / "promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    said = (done.stdout + done.stderr).decode()
    return done.returncode, {line.strip() for line in said.splitlines() if line.strip()}


def with_other_names(text: bytes) -> bytes:
    """NVIDIA's names in Prometheus' style, everything else as it is."""
    styled = text.decode().replace("modelName=", "model_name=")
    for name in COUNTERS:
        plain = name.removesuffix("_TOTAL").removesuffix("_COUNTER")
        styled = re.sub(rf"\b{name}\b", f"{plain}_total", styled)
    return styled.encode()


def test_every_family_is_in_the_text_that_is_checked() -> None:
    text = a_full_exposition().decode()

    assert all(f"# TYPE {family.name} {family.kind}\n" in text for family in DEFAULT_FAMILIES)


def test_promtool_complains_of_nvidias_names_and_nothing_else(programs: Path) -> None:
    expected = {
        *(
            f"{family.name} label names should be written in 'snake_case' not 'camelCase'"
            for family in DEFAULT_FAMILIES
        ),
        *(f'{name} counter metrics should have "_total" suffix' for name in COUNTERS),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER metric name should not include type 'counter'",
    }

    assert check(programs, a_full_exposition()) == (_COMPLAINED, expected)


def test_promtool_has_nothing_to_say_once_the_names_are_replaced(programs: Path) -> None:
    assert check(programs, with_other_names(a_full_exposition())) == (0, set())


def test_promtool_would_tell_of_an_error(programs: Path) -> None:
    text = a_full_exposition()

    code, said = check(programs, text + b"DCGM_FI_DEV_GPU_UTIL{ 1\n")

    assert (code, len(said)) == (1, 1)
