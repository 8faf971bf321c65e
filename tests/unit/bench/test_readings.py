import os
from collections import Counter
from pathlib import Path

from gpuloom.runtime.clock import FakeClock
from tests.bench.api_writes import parse_writes, writes_between
from tests.bench.caller import read_waits
from tests.bench.calls import CallRecorder, read_calls
from tests.bench.observer import BindingObserver
from tests.bench.processes import ProcessMeter, find_process, parse_cpu_s, parse_peak_rss_mib

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",group="",resource="pods",subresource="binding",verb="POST"} 7
apiserver_request_total{code="409",group="",resource="pods",subresource="binding",verb="POST"} 1
apiserver_request_total{code="201",group="events.k8s.io",resource="events",subresource="",verb="POST"} 7
apiserver_request_total{code="200",group="",resource="pods",subresource="",verb="LIST"} 3
apiserver_request_total{code="200",group="coordination.k8s.io",resource="leases",subresource="",verb="PUT"} 9
apiserver_request_duration_seconds_count{verb="POST",resource="pods"} 5
"""


def test_writes_are_counted_by_what_was_written_and_reads_are_not() -> None:
    assert parse_writes(METRICS) == Counter({"POST pods/binding": 8, "POST events": 7})


def test_only_what_came_between_two_readings_counts() -> None:
    before, after = {"POST events": 5, "PATCH nodes": 2}, {"POST events": 8, "PATCH nodes": 2, "POST pods": 1}

    assert writes_between(before, after) == {"POST events": 3, "POST pods": 1}


def test_processor_time_is_read_past_a_name_with_brackets() -> None:
    stat = "42 (odd) name) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 1000 1 1"

    assert parse_cpu_s(stat, ticks_per_s=100) == 2.0


def test_the_peak_of_memory_is_read_in_mib() -> None:
    assert parse_peak_rss_mib("VmPeak:\t  999 kB\nVmHWM:\t  2048 kB\n") == 2.0
    assert parse_peak_rss_mib("State:\tZ (zombie)\n") == 0.0


def test_a_meter_measures_a_running_process() -> None:
    meter = ProcessMeter({"self": os.getpid()})

    meter.begin()
    used = meter.end()["self"]

    assert used.cpu_s >= 0
    assert used.peak_rss_mib > 1


def test_a_process_that_is_not_there_is_not_found() -> None:
    assert find_process("--no-process-has-this-argument") is None


def test_recorded_calls_survive_the_process(tmp_path: Path) -> None:
    recorder = CallRecorder(tmp_path / "calls.json")
    recorder.record("filter", 0.25)
    recorder.record("filter", 0.5)

    recorder.write()

    assert read_calls(tmp_path / "calls.json") == {"filter": [0.25, 0.5]}
    assert read_calls(tmp_path / "none.json") == {}


def test_only_waits_that_began_during_the_burst_count(tmp_path: Path) -> None:
    path = tmp_path / "waits.json"
    path.write_text("[[9.9, 0.1], [10.0, 0.2], [12.0, 0.3], [12.1, 0.4]]", encoding="utf-8")

    assert read_waits(path, 10.0, 12.0) == [0.2, 0.3]
    assert read_waits(tmp_path / "none.json", 0.0, 1.0) == []


async def test_a_binding_is_seen_once_and_the_first_is_announced() -> None:
    clock, announced = FakeClock(), []
    observer = BindingObserver(2, clock, lambda: announced.append(clock.monotonic()))
    unbound = {"metadata": {"name": "a"}, "spec": {}}
    bound = {"metadata": {"name": "a"}, "spec": {"nodeName": "n"}}

    observer.note(unbound)
    await clock.advance(1.0)
    observer.note(bound)
    await clock.advance(1.0)
    observer.note(bound)
    observer.note({"metadata": {"name": "b"}, "spec": {"nodeName": "n"}})

    assert observer.times_s == {"a": 1.0, "b": 2.0}
    assert announced == [1.0]
