from hypothesis import given
from hypothesis import strategies as st

from services.discovery.core.alarms import Alarms

NAMES = st.sampled_from("abc")
TIMES = st.integers(0, 5).map(float)
STEPS = st.one_of(
    st.tuples(st.just("set"), NAMES, TIMES),
    st.tuples(st.just("clear"), NAMES, TIMES),
    st.tuples(st.just("take"), NAMES, TIMES),
)


@given(st.lists(STEPS, max_size=40))
def test_each_name_is_due_once_at_the_time_set_last(steps: list[tuple[str, str, float]]) -> None:
    alarms, expected = Alarms(), dict[str, float]()

    for step, name, time_s in steps:
        if step == "set":
            alarms.set(name, time_s)
            expected[name] = time_s
        elif step == "clear":
            alarms.clear(name)
            expected.pop(name, None)
        else:
            due = {known for known, due_s in expected.items() if due_s <= time_s}
            taken = alarms.take_due(time_s)
            assert len(taken) == len(due)
            assert set(taken) == due
            expected = {known: due_s for known, due_s in expected.items() if known not in due}
