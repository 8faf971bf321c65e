from dataclasses import replace

import orjson

from tests.bench.processes import ProcessUse
from tests.bench.report import RunFacts, render, summarize, table, to_json
from tests.bench.rounds import RoundResult
from tests.bench.variants import Variant

FACTS = RunFacts(
    nodes=1000,
    modes=("nvidia", "gpuloom"),
    pods=300,
    rounds=2,
    seed=1,
    shortlist=8,
    cores=2,
    profiled=False,
    started="2026-01-01T00:00:00+00:00",
)


def a_result(variant: Variant, number: int, rate: float | None, filter_s: float = 0.001) -> RoundResult:
    return RoundResult(
        variant=variant,
        number=number,
        pods=300,
        bound=300,
        pods_per_s=rate,
        calls={} if variant is Variant.BARE else {"filter": [filter_s] * 300},
        processes={"kube-scheduler": ProcessUse(2.0 * number, 80.0 + number)},
        writes={"POST events": 300, "POST pods/binding": 300},
    )


RESULTS = [
    a_result(Variant.BARE, 1, 100.0),
    a_result(Variant.OURS, 1, 110.0, filter_s=0.003),
    a_result(Variant.OURS, 2, 45.0, filter_s=0.003),
    a_result(Variant.NOOP, 1, 120.0),
    a_result(Variant.BARE, 2, 50.0),
    a_result(Variant.NOOP, 2, 60.0),
]


def test_throughput_is_compared_within_each_round() -> None:
    bare, _noop, ours = summarize(RESULTS)

    assert bare.variant is Variant.BARE
    assert ours.ratio_to_bare is not None
    assert (ours.ratio_to_bare.lowest, ours.ratio_to_bare.highest) == (0.9, 1.1)


def test_processor_time_is_compared_within_each_round_too() -> None:
    dearer = [
        replace(
            result, processes={"kube-scheduler": ProcessUse(3.0, 80.0), "extender": ProcessUse(1.0, 80.0)}
        )
        if (result.variant, result.number) == (Variant.OURS, 1)
        else result
        for result in RESULTS
    ]

    ours = summarize(dearer)[-1]

    assert ours.cpu_ratio_to_bare is not None
    assert (ours.cpu_ratio_to_bare.lowest, ours.cpu_ratio_to_bare.highest) == (1.0, 2.0)


def test_calls_are_compared_with_those_of_the_do_nothing_extender() -> None:
    ours = summarize(RESULTS)[-1]

    assert ours.calls["filter"].count == 600
    assert round(ours.ratios_to_noop["noop"]["filter"].p99, 6) == 3.0
    assert ours.ratios_to_noop["noop-bind"] == {}


def test_processes_show_the_middle_time_and_the_highest_memory() -> None:
    use = summarize(RESULTS)[0].processes["kube-scheduler"]

    assert (use.cpu_s.median, use.peak_rss_mib) == (3.0, 82.0)


def test_writes_are_told_per_pod() -> None:
    assert summarize(RESULTS)[0].writes_per_pod == {"POST events": 1.0, "POST pods/binding": 1.0}


def test_a_failed_round_counts_for_nothing_and_its_problem_is_shown() -> None:
    failed = replace(a_result(Variant.OURS, 2, None), problems=("pod-00001: no allocation",))
    results = [result for result in RESULTS if (result.variant, result.number) != (Variant.OURS, 2)]

    summaries = summarize([*results, failed])

    assert summaries[-1].pods_per_s is not None
    assert summaries[-1].pods_per_s.lowest == 110.0
    assert "PROBLEM ours: round 2: pod-00001: no allocation" in render(FACTS, summaries)


def test_the_report_says_what_its_numbers_belong_to() -> None:
    text = render(FACTS, summarize(RESULTS))

    assert "1000 nodes" in text
    assert "300 pods a burst, 2 rounds" in text
    assert "2 cores" in text
    assert "PROFILED" not in text
    assert "PROFILED" in render(replace(FACTS, profiled=True), summarize(RESULTS))


def test_columns_of_a_table_line_up() -> None:
    lines = table([("name", "value"), ("a", "1.00"), ("longer", "10.00")]).splitlines()

    assert lines == ["  name    value", "  a        1.00", "  longer  10.00"]


def test_the_result_can_be_written_as_json() -> None:
    document = orjson.loads(orjson.dumps(to_json(FACTS, RESULTS)))

    assert document["run"]["nodes"] == 1000
    assert document["variants"]["ours"]["pods_per_s"]["median"] == 77.5
    assert len(document["rounds"]) == len(RESULTS)
