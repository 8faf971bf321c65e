import orjson
from hypothesis import given
from hypothesis import strategies as st

from services.optimizer.core.run import BINS, MAX_RECENT, RECENT_S, Run, run_from_json, run_to_json
from tests.unit.optimizer.builders import a_run

RATIOS = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=60)


@given(RATIOS, st.integers(1, 120))
def test_sums_are_those_of_the_windows(ratios: list[float | None], window_s: int) -> None:
    run = a_run(ratios, window_s)

    known = [ratio for ratio in ratios if ratio is not None]
    assert run.duration_s == len(ratios) * window_s
    assert run.measured_ns == len(known) * window_s * 10**9
    assert sum(run.histogram) == run.measured_ns
    if known:
        assert run.mean_ratio is not None
        assert abs(run.mean_ratio - sum(known) / len(known)) < 1e-6
        high, median = run.quantile(0.95), run.quantile(0.5)
        assert high is not None
        assert median is not None
        assert median <= high <= max(known) + 1 / BINS + 1e-9
    assert len(run.recent) <= MAX_RECENT
    assert run.recent[-1].ends_at_s - run.recent[0].ends_at_s < RECENT_S


@given(RATIOS)
def test_what_is_kept_of_a_run_comes_back(ratios: list[float | None]) -> None:
    run = a_run(ratios)

    document = orjson.loads(orjson.dumps(run_to_json(run)))

    bare = Run(run.pod_uid, run.signature, run.started_at, run.seen_until)
    assert run_from_json(bare, document) == run


def test_nothing_measured_is_no_utilisation() -> None:
    run = a_run([None] * 5)

    assert run.mean_ratio is None
    assert run.quantile(0.5) is None
    assert run.memory_mib == 4096
