from hypothesis import given
from hypothesis import strategies as st

from services.cost_engine.core.gaps import CONTIGUOUS_NS, Narrowed, Sight, narrow

SECOND = CONTIGUOUS_NS
MINUTE = 60 * SECOND


def spool(start_ns: int, lengths: list[int], left_ns: int) -> list[Sight]:
    """Windows that follow on each other, of a node that a pod left at that time."""
    found = []
    for length in lengths:
        end_ns = start_ns + length
        found.append(Sight(start_ns, end_ns, min(left_ns, end_ns) if start_ns < left_ns else None))
        start_ns = end_ns
    return found


@given(
    st.lists(st.integers(2 * SECOND, MINUTE), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 11),
)
def test_windows_that_follow_on_each_other_tell_the_end_whatever_was_assumed_and_however_they_come(
    lengths: list[int], assumed: float, left: float, split: int
) -> None:
    whole = sum(lengths)
    left_ns, assumed_ns = int(whole * left), int(whole * left * assumed)
    sights = spool(0, lengths, left_ns)
    gap: tuple[int, int] | None = (assumed_ns, whole + MINUTE)

    end_ns = assumed_ns
    for part, read_until_ns in ((sights[:split], 0), (sights[split:], sum(lengths[:split]))):
        if gap is not None:
            found = narrow(gap, read_until_ns, part)
            end_ns, gap = found.end_ns, found.gap

    assert end_ns == left_ns
    if sights[-1].held_until_ns is None:
        assert gap is None
    elif gap is not None:
        assert gap == (left_ns, whole + MINUTE)


def test_what_no_window_covers_stays_unknown() -> None:
    found = narrow((MINUTE, 9 * MINUTE), MINUTE, [Sight(4 * MINUTE, 5 * MINUTE, None)])

    assert found == Narrowed(MINUTE, (MINUTE, 4 * MINUTE))


def test_a_pod_that_is_shown_after_a_hole_was_there_all_the_time() -> None:
    found = narrow((MINUTE, 9 * MINUTE), MINUTE, [Sight(4 * MINUTE, 5 * MINUTE, 5 * MINUTE)])

    assert found == Narrowed(5 * MINUTE, (5 * MINUTE, 9 * MINUTE))


def test_a_pod_is_not_billed_beyond_when_it_was_known_to_be_gone() -> None:
    found = narrow((MINUTE, 2 * MINUTE), MINUTE, [Sight(MINUTE, 3 * MINUTE, 3 * MINUTE)])

    assert found == Narrowed(2 * MINUTE, None)
