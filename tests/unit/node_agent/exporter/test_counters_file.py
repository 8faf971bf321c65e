"""What a file of counters in dcgm-exporter's format chooses."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from services.node_agent.exporter.core.counters_file import read_choice
from services.node_agent.exporter.core.exposition import PageFormat
from services.node_agent.exporter.core.families import DEFAULT_FAMILIES
from services.node_agent.exporter.wiring import start_exporter
from tests.unit.node_agent.exporter.builders import FakeNode, a_card, a_picture, values_of
from tests.unit.node_agent.exporter.test_dcgm_reader import BareDriver
from tests.unit.node_agent.exporter.test_exposition import written
from tests.unit.node_agent.exporter.test_wiring import an_app, config, pods_of, text_of

# As dcgm-exporter's own files look: odd spaces, comments with commas, fields that NVML does not have.
FILE = """\
# Format,,
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
  # DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_POWER_VIOLATION,       counter, "Throttling, by power \\ (in ns)."
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status

DCGM_FI_DEV_SERIAL, label, Device Serial Number
DCGM_FI_DEV_VBIOS_VERSION, label, VBIOS version of the device
"""


def test_the_file_chooses_series_labels_and_help_texts() -> None:
    choice = read_choice(FILE)

    text = written(a_picture(a_card(serial="SN7")), PageFormat("Hostname", choice.families, choice.labels))

    comments = [line for line in text.decode().split("\n") if line.startswith("#") and "dcgm_up" not in line]
    assert comments == [
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).",
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
        "# HELP DCGM_FI_DEV_DEC_UTIL Decoder utilization (in %).",
        "# TYPE DCGM_FI_DEV_DEC_UTIL gauge",
        "# HELP DCGM_FI_DEV_POWER_VIOLATION Throttling, by power \\\\ (in ns).",
        "# TYPE DCGM_FI_DEV_POWER_VIOLATION counter",
    ]
    labels = ("DCGM_FI_DEV_SERIAL", "DCGM_FI_DRIVER_VERSION")
    assert values_of(text, "DCGM_FI_DEV_GPU_TEMP", *labels) == {("SN7", ""): 61}
    assert choice.unknown == ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_VBIOS_VERSION")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "must be FIELD, type, help"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, one, two", "commas in quotes"),
        (", gauge, nothing", "must be FIELD, type, help"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "open', "unexpected end of data"),
        ("DCGM_FI_DEV_GPU_TEMP, Gauge, odd", "must be one of gauge, counter, label, not 'Gauge'"),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, again", "is on line 1 already"),
    ],
)
def test_a_line_that_is_none_is_refused_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^line 3: .*{problem}"):
        read_choice(f"DCGM_FI_DEV_SM_CLOCK, gauge, clock\n\n{line}\n")


@given(st.text(max_size=80) | st.lists(st.sampled_from(FILE), max_size=40).map("".join))
def test_a_text_is_a_choice_or_refused_and_nothing_else(text: str) -> None:
    try:
        choice = read_choice(text)
    except InvalidRequestError:
        return

    assert len({family.name for family in choice.families}) == len(choice.families)


def test_the_file_of_all_our_metrics_chooses_what_is_shown_without_one() -> None:
    lines = [f'{family.name}, {family.kind}, "{family.help}"' for family in DEFAULT_FAMILIES]

    assert read_choice("\n".join(lines)).families == DEFAULT_FAMILIES


async def test_an_agent_shows_what_its_file_chooses_and_tells_what_it_can_not_give(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(FILE)
    async with an_app() as app:
        settings = config("on", GPULOOM_AGENT_EXPORTER_COUNTERS_FILE=str(file))

        with caplog.at_level(logging.WARNING):
            export = await start_exporter(app, settings, pods_of(app))
        export.show(FakeNode(a_picture()), BareDriver())
        text = text_of(export)

    assert values_of(text, "DCGM_FI_DEV_GPU_TEMP") == {(): 61}
    assert b"DCGM_FI_DEV_SM_CLOCK" not in text
    (record,) = caplog.records
    assert record.__dict__["fields"] == "DCGM_FI_DEV_VGPU_LICENSE_STATUS, DCGM_FI_DEV_VBIOS_VERSION"


@pytest.mark.parametrize("content", [b"DCGM_FI_DEV_GPU_TEMP\n", b"\xff\n"])
async def test_an_agent_does_not_start_on_a_file_that_can_not_be_understood(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "counters.csv"
    file.write_bytes(content)
    async with an_app() as app:
        settings = config("on", GPULOOM_AGENT_EXPORTER_COUNTERS_FILE=str(file))

        with pytest.raises(InvalidRequestError, match=r"counters\.csv is no file of counters"):
            await start_exporter(app, settings, pods_of(app))
