"""The text is kept between looks, and shows nothing old."""

import gzip
from dataclasses import replace

from prometheus_client import CollectorRegistry

from gpuloom.runtime.clock import FakeClock
from services.node_agent.exporter.core.exposition import PageFormat
from services.node_agent.exporter.exporter import Exporter
from services.node_agent.exporter.metrics import ExporterMetrics
from tests.unit.node_agent.exporter.builders import FakeNode, a_full_picture, a_picture, values_of


def an_exporter(*nodes: FakeNode, note: str = "") -> Exporter:
    exporter = Exporter(PageFormat(), FakeClock(), ExporterMetrics(CollectorRegistry()))
    for node in nodes:
        exporter.add(node, lambda: note)
    return exporter


def test_the_text_is_the_same_object_until_the_next_look() -> None:
    node = FakeNode(a_picture())
    exporter = an_exporter(node)
    first, first_compressed = exporter.text(), exporter.compressed_text()

    assert exporter.text() is first
    assert exporter.compressed_text() is first_compressed
    node.picture = a_full_picture()
    assert b"GPU-mig" in exporter.text()
    assert gzip.decompress(exporter.compressed_text()) == exporter.text()


def test_before_the_first_look_nothing_is_up() -> None:
    text = an_exporter(FakeNode()).text()

    assert values_of(text, "dcgm_up", "Hostname", "node") == {("n1", "n1"): 0}
    assert b"DCGM_FI_DEV" not in text


def test_a_driver_that_does_not_answer_takes_its_series_away() -> None:
    node = FakeNode(a_picture())
    exporter = an_exporter(node)
    assert b"DCGM_FI_DEV_GPU_UTIL" in exporter.text()

    node.picture = replace(a_picture(), reading=None)

    assert values_of(exporter.text(), "dcgm_up") == {(): 0}
    assert b"DCGM_FI_DEV" not in exporter.text()


def test_an_old_look_is_not_shown_and_a_new_one_brings_the_series_back() -> None:
    node = FakeNode(a_picture())
    exporter = an_exporter(node)
    before = exporter.text()

    node.stale = "the node was last sampled 60 s ago"
    stale, reason = exporter.text(), exporter.stale_reason()
    node.stale = None

    assert values_of(stale, "dcgm_up") == {(): 0}
    assert b"DCGM_FI_DEV" not in stale
    assert reason == "n1: the node was last sampled 60 s ago"
    assert exporter.text() == before
    assert exporter.stale_reason() is None


def test_a_node_shown_elsewhere_says_so_and_shows_no_devices() -> None:
    text = an_exporter(FakeNode(a_picture()), note="shown elsewhere").text()

    assert text.startswith(b"# n1: shown elsewhere\n")
    assert values_of(text, "dcgm_up") == {(): 1}
    assert b"DCGM_FI_DEV" not in text


def test_a_stale_node_hides_no_other() -> None:
    stale = FakeNode(a_picture(node_name="n1"), stale="old")

    text = an_exporter(stale, FakeNode(a_picture(node_name="n2"))).text()

    assert values_of(text, "dcgm_up", "node") == {("n1",): 0, ("n2",): 1}
    assert set(values_of(text, "DCGM_FI_DEV_GPU_TEMP", "node")) == {("n2",)}
