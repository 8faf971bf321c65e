"""What Prometheus reads of a sample."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.model.gpu import DeviceRef, GpuHealth, GpuUsage
from services.node_agent.core.picture import Picture
from services.node_agent.core.readings import GpuSample, InstanceReading
from services.node_agent.exporter.core.exposition import NodePage, PageFormat, device_block, exposition
from services.node_agent.exporter.core.families import DEFAULT_FAMILIES
from tests.unit.node_agent.exporter.builders import (
    A_SAMPLE,
    MIG_GPU,
    SLICES,
    a_card,
    a_cut_card,
    a_full_picture,
    a_holder,
    a_picture,
    a_process,
    values_of,
)

BIG, SMALL = (DeviceRef(MIG_GPU, placement) for placement in SLICES)


def written(picture: Picture, form: PageFormat | None = None) -> bytes:
    form = form or PageFormat()
    page = NodePage(picture.state.node_name, True, device_block(picture, form))
    return exposition([page], form)


def lines_of(text: bytes, name: str) -> list[str]:
    return [line for line in text.decode().split("\n") if line.startswith(f"{name}{{")]


def test_a_line_has_the_labels_of_dcgm_exporter_in_its_order() -> None:
    text = written(a_picture(holders=(a_holder("train", DeviceRef("GPU-a")),)))

    assert lines_of(text, "DCGM_FI_DEV_GPU_TEMP") == [
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",pci_bus_id="00000000:01:00.0",device="nvidia0",'
        'modelName="A100-SXM4-80GB",Hostname="n1",node="n1",DCGM_FI_DRIVER_VERSION="550.54.15",'
        'container="main",namespace="team-a",pod="train"} 61'
    ]


def test_the_model_is_named_as_the_driver_prints_it() -> None:
    picture = a_picture()
    assert picture.reading is not None
    named = replace(picture.reading, products={"GPU-a": "NVIDIA A100-SXM4-80GB"})

    text = written(replace(picture, reading=named))

    assert 'modelName="NVIDIA A100-SXM4-80GB"' in lines_of(text, "DCGM_FI_DEV_GPU_TEMP")[0]


def test_the_hostname_can_be_written_in_small_letters() -> None:
    assert (
        'hostname="n1",node="n1"'
        in lines_of(written(a_picture(), PageFormat("hostname")), "DCGM_FI_DEV_GPU_TEMP")[0]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPU_UTIL", 80),
        ("MEM_COPY_UTIL", 30),
        ("ENC_UTIL", 5),
        ("FB_USED", 10_000),
        ("FB_FREE", 70_000),
        ("FB_RESERVED", 559),
        ("FB_TOTAL", 81_920),
        ("POWER_USAGE", 300),
        ("TOTAL_ENERGY_CONSUMPTION", 123_456),
        ("SM_CLOCK", 1410),
        ("ROW_REMAP_FAILURE", 0),
        ("NVLINK_BANDWIDTH_TOTAL", 4),
        ("ECC_DBE_VOL_TOTAL", 4),
        ("CLOCK_THROTTLE_REASONS", 1),
        ("POWER_VIOLATION", A_SAMPLE.counters.power_violation_ns),
        ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", A_SAMPLE.counters.nvlink_replay_errors),
    ],
)
def test_values_have_the_units_of_dcgm_exporter(name: str, value: float) -> None:
    assert values_of(written(a_picture()), f"DCGM_FI_DEV_{name}") == {(): value}


def test_what_the_driver_does_not_give_is_left_out() -> None:
    text = written(a_picture(samples={"GPU-a": GpuSample(power_w=50.0)}))

    names = {family.name for family in text_string_to_metric_families(text.decode())}

    assert names == {"dcgm_up", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_TOTAL"}


def test_a_lost_gpu_shows_its_last_error_alone_and_hides_no_other() -> None:
    lost = a_card("GPU-b", 1, health=GpuHealth.LOST)
    picture = a_picture(a_card(), lost, last_xids={DeviceRef("GPU-b"): 79})

    text = written(picture)

    assert values_of(text, "DCGM_FI_DEV_XID_ERRORS", "UUID") == {("GPU-b",): 79}
    assert values_of(text, "DCGM_FI_DEV_FB_TOTAL", "UUID") == {("GPU-a",): 81_920}
    assert text.count(b'UUID="GPU-b"') == 1


def test_a_driver_that_tells_only_usage_is_shown_with_that() -> None:
    usage = (GpuUsage("GPU-a", 0.5, 100, 80.0, 40.0),)
    picture = a_picture(samples={})
    assert picture.reading is not None

    text = written(replace(picture, reading=replace(picture.reading, usage=usage)))

    assert values_of(text, "DCGM_FI_DEV_GPU_UTIL") == {(): 50}
    assert values_of(text, "DCGM_FI_DEV_FB_FREE") == {}


def test_shared_use_is_split_and_adds_up_to_the_card() -> None:
    device = DeviceRef("GPU-a")
    picture = a_picture(
        holders=(a_holder("left", device), a_holder("right", device)),
        processes=(
            a_process("left", sm_ratio=0.6, memory_mib=1000),
            a_process("right", sm_ratio=0.1, memory_mib=2000),
            a_process(sm_ratio=0.1, memory_mib=1000),
        ),
    )

    text = written(picture)

    assert values_of(text, "DCGM_FI_DEV_GPU_UTIL", "pod") == {("left",): 60, ("right",): 10, ("",): 10}
    assert values_of(text, "DCGM_FI_DEV_FB_USED", "pod") == {("left",): 2500, ("right",): 5000, ("",): 2500}
    assert sum(values_of(text, "DCGM_FI_DEV_POWER_USAGE", "pod").values()) == pytest.approx(300)


def test_what_belongs_to_the_whole_card_is_repeated_for_each_owner() -> None:
    device = DeviceRef("GPU-a")
    text = written(a_picture(holders=(a_holder("left", device), a_holder("right", device))))

    for name in ("GPU_TEMP", "SM_CLOCK", "FB_TOTAL", "TOTAL_ENERGY_CONSUMPTION"):
        left, right = values_of(text, f"DCGM_FI_DEV_{name}", "pod").values()
        assert left == right


def test_a_cut_card_shows_its_instances_under_its_own_uuid() -> None:
    readings = {BIG: InstanceReading(1, 4000, 36_192), SMALL: InstanceReading(7, 0, 9_728)}
    text = written(a_picture(a_cut_card(), holders=(a_holder("sliced", BIG),), instances=readings))

    labels = ("UUID", "GPU_I_PROFILE", "GPU_I_ID", "pod")

    assert values_of(text, "DCGM_FI_DEV_FB_USED", *labels) == {
        (MIG_GPU, "3g.40gb", "1", "sliced"): 4000,
        (MIG_GPU, "1g.10gb", "7", ""): 0,
    }
    assert set(values_of(text, "DCGM_FI_DEV_FB_TOTAL", *labels).values()) == {40_192, 9_728}
    assert set(values_of(text, "DCGM_FI_DEV_POWER_USAGE", *labels).values()) == {300}


def test_a_cut_card_has_no_utilisation_that_reads_as_idle() -> None:
    text = written(a_full_picture())

    for name in ("GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL"):
        assert (MIG_GPU,) not in {key[:1] for key in values_of(text, f"DCGM_FI_DEV_{name}", "UUID", "pod")}


def test_activity_is_that_of_the_instance() -> None:
    found = values_of(written(a_full_picture()), "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "UUID", "GPU_I_ID")

    assert found == {("GPU-a", ""): 0.9, (MIG_GPU, "1"): 0.9}


def test_no_error_so_far_is_zero_where_errors_are_reported_and_nothing_elsewhere() -> None:
    deaf, lost = a_card("GPU-deaf", 2), a_card("GPU-lost", 3, health=GpuHealth.LOST)
    heard = frozenset({"GPU-a", MIG_GPU, "GPU-lost"})
    picture = a_picture(a_card(), a_cut_card(), deaf, lost, last_xids={SMALL: 43}, xids_heard=heard)

    found = values_of(written(picture), "DCGM_FI_DEV_XID_ERRORS", "UUID", "GPU_I_PROFILE")

    assert found == {("GPU-a", ""): 0, (MIG_GPU, "3g.40gb"): 0, (MIG_GPU, "1g.10gb"): 43}


def test_an_instance_without_its_own_error_shows_that_of_its_card() -> None:
    picture = a_picture(a_cut_card(), last_xids={DeviceRef(MIG_GPU): 48, SMALL: 43})

    found = values_of(written(picture), "DCGM_FI_DEV_XID_ERRORS", "GPU_I_PROFILE")

    assert found == {("3g.40gb",): 48, ("1g.10gb",): 43}


def test_instances_that_the_driver_does_not_number_can_be_told_apart() -> None:
    found = values_of(written(a_picture(a_cut_card())), "DCGM_FI_DEV_FB_TOTAL", "GPU_I_ID")

    assert set(found) == {("start-0",), ("start-4",)}


def test_families_come_once_for_all_nodes_and_in_a_stable_order() -> None:
    pictures = [a_full_picture("n1"), a_full_picture("n2")]
    pages = [NodePage(p.state.node_name, True, device_block(p, PageFormat())) for p in pictures]

    text = exposition(pages, PageFormat())

    assert text == exposition(pages, PageFormat())
    types = [line.split(b" ")[2].decode() for line in text.split(b"\n") if line.startswith(b"# TYPE")]
    assert types == ["dcgm_up", *(family.name for family in DEFAULT_FAMILIES)]
    assert set(values_of(text, "dcgm_up", "Hostname", "node").values()) == {1}
    assert len(values_of(text, "DCGM_FI_DEV_XID_ERRORS", "node", "UUID", "GPU_I_ID")) == 4


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_name_survives_the_way_to_prometheus(name: str) -> None:
    text = written(a_picture(a_card(model=name), samples={"GPU-a": A_SAMPLE}))

    (found,) = values_of(text, "DCGM_FI_DEV_GPU_TEMP", "modelName")

    assert found == (name.replace("\0", "\ufffd"),)


def test_text_that_is_no_unicode_does_not_break_the_rest() -> None:
    assert b'modelName="?"' in written(a_picture(a_card(model="\ud800")))
