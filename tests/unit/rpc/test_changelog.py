import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.rpc.changelog import ChangeLog
from gpuloom.rpc.streams import ReaderTooSlowError

STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=30)


@given(STEPS, st.integers(0, 30))
def test_since_names_every_node_once_in_the_order_of_its_newest_change(
    steps: list[tuple[str, bool]], number: int
) -> None:
    log, newest = ChangeLog(), dict[str, int]()

    for step, (uid, removed) in enumerate(steps, 1):
        (log.remove if removed else log.change)(uid, step)
        newest[uid] = step

    later = [(uid, at) for uid, at in newest.items() if at > number]
    assert log.since(number) == sorted(later, key=lambda entry: entry[1])
    assert (log.number, log.changes) == (len(steps), len(steps))


@given(STEPS, st.integers(0, 30))
def test_a_removal_is_either_told_or_the_reader_is_cut_off(
    steps: list[tuple[str, bool]], number: int
) -> None:
    log, removed_at = ChangeLog(kept_removals=1), dict[str, int]()

    for step, (uid, removed) in enumerate(steps, 1):
        (log.remove if removed else log.change)(uid, step)
        removed_at.pop(uid, None)
        if removed:
            removed_at[uid] = step

    try:
        told = {uid for uid, _ in log.since(number)}
    except ReaderTooSlowError:
        return
    assert {uid for uid, at in removed_at.items() if at > number} <= told


def test_forgotten_removals_cost_only_those_who_had_not_been_told() -> None:
    log = ChangeLog(kept_removals=2)
    for number, uid in enumerate(("a", "b", "c"), 1):
        log.remove(uid, number)

    with pytest.raises(ReaderTooSlowError, match="more than 2 removed nodes behind"):
        log.since(0)
    assert log.since(1) == [("b", 2), ("c", 3)]


def test_a_node_that_came_back_is_no_removal_any_more() -> None:
    log = ChangeLog(kept_removals=1)
    log.remove("a", 1)
    log.change("a", 2)

    log.remove("b", 3)

    assert log.since(0) == [("a", 2), ("b", 3)]
