"""The pure parts of the agent benchmark: which looks were made, what they cost, whether aims are met."""

from collections.abc import Sequence
from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.agent.looks import LookCost, Sample, Tier, calls_between, cpu_share, looks_of
from tests.bench.agent.measurement import Measured, Watched
from tests.bench.agent.observation import Memory, OwnFigures, parse_memory, parse_own_figures
from tests.bench.agent.report import render, summarize, to_json
from tests.bench.agent.scrapes import Page, Scrape
from tests.bench.agent.variants import AIMED, BUSY, STILL, VARIANTS, WHOLE, Layout, devices, machine_keys

POWER = "nvmlDeviceGetPowerUsage"
LISTING = "nvmlDeviceGetComputeRunningProcesses_v3"
ANCESTOR = "nvmlDeviceGetTopologyCommonAncestor"
WAITING = "nvmlEventSetWait_v2"
STEP_S = 0.1


def glances(*made: dict[str, int], cpu_s: float = 0.002) -> tuple[Sample, ...]:
    """One glance every 0.1 s. Each entry is the calls since the one before; if there are any, they cost."""
    samples, calls, used_s = [Sample(0.0, 0.0, {})], dict[str, int](), 0.0
    for number, more in enumerate(made, start=1):
        calls = {name: calls.get(name, 0) + more.get(name, 0) for name in calls.keys() | more.keys()}
        used_s += cpu_s if more else 0.0
        samples.append(Sample(number * STEP_S, used_s, calls))
    return tuple(samples)


def silence(seconds: float) -> list[dict[str, int]]:
    return [{}] * round(seconds / STEP_S)


def looking(times: int, *calls: dict[str, int]) -> tuple[Sample, ...]:
    """An agent that looks so often, with a second of silence around each sample."""
    return glances(*silence(1), *([*calls, *silence(1)] * times))


def test_calls_that_follow_each_other_are_one_look() -> None:
    (look,) = looks_of(glances(*silence(1), {POWER: 8}, {POWER: 4}, *silence(1)))

    assert (look.tier, look.calls, look.cpu_s) == (Tier.FAST, 12, 0.004)


def test_a_look_is_known_by_what_it_reads() -> None:
    slow, links = {POWER: 8, LISTING: 8}, {POWER: 8, ANCESTOR: 28}

    looks = looks_of(looking(1, {POWER: 8}, *silence(1), slow, *silence(1), links, *silence(1), slow | links))

    assert [look.tier for look in looks] == [Tier.FAST, Tier.SLOW, Tier.LINKS, Tier.ALL]


def test_looks_that_were_not_seen_whole_do_not_count() -> None:
    looks = looks_of(glances({POWER: 3}, *silence(1), {POWER: 8}, *silence(1), {POWER: 5}))

    assert [look.calls for look in looks] == [8]


def test_the_thread_that_waits_for_events_makes_no_look() -> None:
    samples = glances(*[{WAITING: 1}] * 30)

    assert looks_of(samples) == ()
    assert calls_between(samples[0], samples[-1]) == 0


def test_without_a_glance_there_is_no_look() -> None:
    assert looks_of(()) == ()


@given(st.lists(st.sampled_from([{}, {POWER: 1}, {LISTING: 2}, {WAITING: 1}]), max_size=80))
def test_no_call_counts_in_two_looks(made: list[dict[str, int]]) -> None:
    samples = glances(*made)

    looks = looks_of(samples)

    assert sum(look.calls for look in looks) <= calls_between(samples[0], samples[-1])
    assert all(look.calls > 0 for look in looks)
    ends = [look.ended.at_s for look in looks]
    assert ends == sorted(set(ends))


def test_the_share_of_a_core_counts_whole_intervals_only() -> None:
    samples = looking(5, {POWER: 8})

    share = cpu_share(samples, looks_of(samples))

    # Four intervals of 1.1 s with a sample of 2 ms each; the ends of the period are left out.
    assert round(share, 6) == round(0.002 / 1.1, 6)


def test_the_share_of_an_agent_that_does_not_look_is_that_of_the_period() -> None:
    samples = (Sample(0.0, 1.0, {}), Sample(10.0, 1.5, {}))

    assert cpu_share(samples, ()) == 0.05


def test_memory_is_read_from_the_status_of_a_process() -> None:
    status = "Name:\tpython\nVmHWM:\t   73728 kB\nVmRSS:\t   71680 kB\n"

    assert parse_memory(status) == Memory(70.0, 72.0)
    assert parse_memory("Name:\tpython\nState:\tZ (zombie)\n") == Memory(0.0, 0.0)


def test_looks_with_a_problem_are_told_from_the_agent_s_metrics() -> None:
    text = """# TYPE gpuloom_node_agent_samples_total counter
gpuloom_node_agent_samples_total{problem="none"} 9.0
gpuloom_node_agent_samples_total{problem="holders"} 2.0
gpuloom_node_agent_samples_total{problem="driver"} 1.0
# TYPE gpuloom_node_agent_sample_duration_seconds histogram
gpuloom_node_agent_sample_duration_seconds_bucket{le="+Inf"} 12.0
gpuloom_node_agent_sample_duration_seconds_count 12.0
gpuloom_node_agent_sample_duration_seconds_sum 0.6
# TYPE gpuloom_node_agent_exposition_duration_seconds histogram
gpuloom_node_agent_exposition_duration_seconds_count 4.0
gpuloom_node_agent_exposition_duration_seconds_sum 0.02
"""

    figures = parse_own_figures(text)

    assert figures == OwnFigures(looks=12, troubled_looks=3, look_s=0.6, written=4)
    assert figures.since(OwnFigures(2, 3, 0.5, 4)).looks == 10


def test_every_device_has_a_pod_and_a_process_of_its_own() -> None:
    for layout, count in ((Layout.SLICES, 56), (Layout.WHOLE, 8)):
        given_out = devices(layout)
        processes = [
            int(process.split(":")[0])
            for key, value in machine_keys(layout).items()
            if key.endswith(".processes")
            for process in str(value).split(",")
        ]

        assert len({device.device_id for device in given_out}) == count
        assert len({device.pod for device in given_out}) == count
        assert sorted(processes) == sorted(device.pid for device in given_out)


def test_within_the_aims_nothing_fails() -> None:
    summary = summarize(measured())

    assert summary.failures == ()
    assert summary.slices_to_whole == {Tier.FAST: 2.0}
    assert summary.scrapes[Page.KEPT].ratio_to_own == 0.5
    assert summary.looks[BUSY.name][Tier.FAST].yardsticks == 2.0
    assert "met: CPU at 10 s" in render(summary)
    assert orjson.loads(to_json(summary))["calls_while_scraped"] == 0


def test_an_agent_that_is_too_large_misses_its_aim() -> None:
    whole = measured()
    large = replace(whole, memory={**whole.memory, AIMED: Memory(90.0, 128.5)})

    summary = summarize(large)

    assert summary.failures == ("MISSED: peak RSS at 10 s 128.50 MiB, at most 128 MiB",)
    assert summary.failures[0] in render(summary)


def test_an_agent_that_computes_too_much_misses_its_aim() -> None:
    busy = measured(aimed=watched(looking(3, {POWER: 8}), cpu_factor=50.0))

    assert [failure.split(" s ")[0] for failure in summarize(busy).failures] == ["MISSED: CPU at 10"]


def test_agents_that_did_not_do_their_work_prove_nothing() -> None:
    idle = measured(aimed=replace(watched(looking(3, {POWER: 8})), own=OwnFigures(3, 1, 0.1, 0)))
    silent = replace(idle, calls_while_scraped=5, written_anew=1, shown_devices=55)

    assert len(summarize(silent).problems) == 4


def measured(aimed: Watched | None = None) -> Measured:
    agents = {
        AIMED: aimed or watched(looking(3, {POWER: 8})),
        BUSY: watched(looking(9, {POWER: 8}), cpu_factor=2.0),
        WHOLE: watched(looking(9, {POWER: 8})),
        STILL: watched(glances(*silence(3))),
    }
    return Measured(
        watched=agents,
        memory=dict.fromkeys(VARIANTS, Memory(70.0, 72.0)),
        yardsticks_s=(0.002, 0.002, 0.004),
        scrapes={
            Page.OWN: scrapes(0.002),
            Page.KEPT: scrapes(0.001),
            Page.KEPT_GZIP: scrapes(0.001),
            Page.WRITTEN: scrapes(0.004),
            Page.WRITTEN_GZIP: scrapes(0.004),
        },
        calls_while_scraped=0,
        written_anew=6,
        shown_devices=56,
    )


def watched(samples: Sequence[Sample], cpu_factor: float = 1.0) -> Watched:
    slower = tuple(replace(sample, cpu_s=cpu_factor * sample.cpu_s) for sample in samples)
    looks: tuple[LookCost, ...] = looks_of(slower)
    return Watched(slower, OwnFigures(len(looks), 0, 0.01 * len(looks), 0), 12, "")


def scrapes(took_s: float) -> list[Scrape]:
    return [Scrape(took_s, took_s / 2, 1000)] * 3
