"""Where windows of a node belong in time whose clock is set while nobody reads them."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.usage import UsageWindow
from services.cost_engine.core.windows import SKEW_NS, place_window
from tests.effort import examples

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE_NS = 60_000_000_000
START_NS = round(START.timestamp()) * 1_000_000_000
LIVE = 2


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(-90, 90)), max_size=6),
    st.integers(0, 600),
)
def test_a_clock_that_was_set_while_nobody_read_is_right_again_soon_after_it_is_right(
    jumps: list[tuple[int, int]], read_after: int
) -> None:
    """Jumps: for how many minutes the clock is off by how many minutes. Then it is right."""
    offsets = [offset for minutes, offset in jumps for _ in range(minutes)]
    offsets += [0] * (max(0, read_after - len(offsets)) + LIVE)
    end_ns = 0
    for number, offset in enumerate(offsets):
        true_ns = START_NS + number * MINUTE_NS
        received_ns = max(true_ns + MINUTE_NS, START_NS + read_after * MINUTE_NS)
        told = START + timedelta(minutes=number + offset)
        placed = place_window(UsageWindow(number + 1, "n", told, MINUTE_NS, ()), end_ns, received_ns)
        assert placed.end_ns - placed.start_ns == MINUTE_NS
        assert placed.end_ns <= received_ns + SKEW_NS
        end_ns = placed.end_ns

    assert abs(placed.start_ns - true_ns) <= SKEW_NS
