"""What windows make of samples, whatever comes."""

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.usage import UsageWindow
from services.node_agent.usage.core.integrator import Integrator
from services.node_agent.usage.core.sample import Sample
from tests.unit.node_agent.usage.builders import NOON, S, a_pod, a_sample, holding

WINDOW_NS, GAP_NS = 60 * S, 5 * S

HOLDINGS = st.sampled_from([{}, {"train": 0.25}, {"train": None}, {"train": 0.5, "serve": 0.25}])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 8 * S),
        HOLDINGS,
        st.booleans(),
        st.sampled_from([0, 0, 0, 0, 3600, -3600]),
    ),
    min_size=2,
    max_size=60,
)


def integrate(samples: list[Sample], window_ns: int = WINDOW_NS) -> list[UsageWindow]:
    integrator = Integrator(window_ns, GAP_NS)
    closed = [window for sample in samples for window in integrator.add(sample)]
    return closed + integrator.close()


def played(steps: list[tuple[int, dict[str, float | None], bool, int]]) -> list[Sample]:
    """Samples with gaps, holders that come and go, unknown holders, and a clock that is set."""
    samples, at_ns, shift = [], 0, 0
    for gap_ns, holders, known, jump_s in steps:
        at_ns, shift = at_ns + gap_ns, shift + jump_s
        wall = NOON + timedelta(microseconds=at_ns // 1000, seconds=shift)
        samples.append(a_sample(at_ns, wall=wall, readings=holding(**holders), holders_known=known))
    return samples


@given(STEPS)
def test_time_is_conserved_and_no_use_exceeds_it(steps: list) -> None:  # type: ignore[type-arg]
    samples = played(steps)

    windows = integrate(samples)

    known = [sample for sample in samples if sample.holders_known]
    begun_ns = known[0].at_ns if known else samples[-1].at_ns
    pairs = pairwise(samples)
    seen_ns = sum(
        after.at_ns - before.at_ns
        for before, after in pairs
        if before.at_ns >= begun_ns and after.at_ns - before.at_ns <= GAP_NS
    )
    assert sum(window.duration_ns for window in windows) == seen_ns
    for window in windows:
        assert 0 < window.duration_ns <= WINDOW_NS
        for usage in window.devices:
            assert 0 <= usage.used_ns <= usage.measured_ns <= usage.held_ns <= window.duration_ns
            assert usage.held_ns == (window.duration_ns if usage.pod else 0)


@given(STEPS, st.integers(2, 90))
def test_sums_do_not_depend_on_where_windows_are_cut(steps: list, window_s: int) -> None:  # type: ignore[type-arg]
    samples, window_ns = played(steps), window_s * S

    minutes, others = integrate(samples), integrate(samples, window_ns)

    for field in ("held_ns", "measured_ns"):
        assert totals(minutes, field) == totals(others, field)
    slack = len(samples) + sum(window.duration_ns for window in others) // window_ns + len(minutes) + 2
    for pod, used_ns in totals(minutes, "used_ns").items():
        assert abs(used_ns - totals(others, "used_ns")[pod]) <= slack


def test_windows_are_aligned_and_follow_each_other() -> None:
    windows = integrate([a_sample(at * S + 7 * S) for at in range(150)])

    assert [window.start - NOON for window in windows] == [timedelta(seconds=at) for at in (7, 60, 120)]
    assert [window.duration_ns for window in windows] == [53 * S, 60 * S, 36 * S]
    assert [window.devices[0].used_ns for window in windows] == [53 * S // 2, 30 * S, 18 * S]
    assert [window.devices[0].energy_mj for window in windows] == [5_300_000, 6_000_000, 3_600_000]


def test_a_pod_that_comes_or_goes_ends_the_window_for_all() -> None:
    alone = [a_sample(at * S) for at in range(11)]
    both = [a_sample(at * S, readings=holding(train=0.5, serve=0.1)) for at in range(11, 21)]
    gone = [a_sample(at * S, readings=holding(serve=0.1)) for at in range(21, 31)]

    windows = integrate(alone + both + gone)

    pods = [[usage.pod for usage in window.devices] for window in windows]
    train, serve = a_pod("train"), a_pod("serve")
    assert pods == [[train], [serve, train], [serve]]
    assert [window.duration_ns // S for window in windows] == [11, 10, 9]
    # What the sample says at which somebody came is not of the one who was alone before.
    assert windows[0].devices[0].measured_ns == 10 * S


def test_not_measured_is_not_idle() -> None:
    measured = [a_sample(at * S, 0.0) for at in range(11)]
    silent = [a_sample(at * S, None) for at in range(11, 31)]

    (window,) = integrate(measured + silent)

    usage = window.devices[0]
    assert (usage.held_ns, usage.measured_ns, usage.used_ns) == (30 * S, 10 * S, 0)


def test_a_clock_that_is_set_moves_the_start_and_no_duration() -> None:
    before = [a_sample(at * S) for at in range(31)]
    hour = timedelta(hours=1)
    later = [a_sample(at * S, wall=NOON + timedelta(seconds=at) - hour) for at in range(31, 61)]

    windows = integrate(before + later)

    assert [window.start - NOON for window in windows] == [timedelta(0), timedelta(seconds=31) - hour]
    assert [window.duration_ns // S for window in windows] == [31, 29]


def test_energy_goes_by_use_and_while_idle_by_share() -> None:
    idle = [a_sample(at * S, readings=holding(train=0.0, serve=0.0)) for at in range(11)]
    busy = [a_sample(at * S, readings=holding(train=0.6, serve=0.2)) for at in range(11, 31)]

    (window,) = integrate(idle + busy)

    energy = {usage.pod: usage.energy_mj for usage in window.devices}
    assert energy == {a_pod("train"): 2_000_000, a_pod("serve"): 1_000_000}


def totals(windows: list[UsageWindow], field: str) -> dict[object, int]:
    found: dict[object, int] = {}
    for window in windows:
        for usage in window.devices:
            found[usage.pod] = found.get(usage.pod, 0) + getattr(usage, field)
    return found
