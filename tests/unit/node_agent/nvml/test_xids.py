"""Which errors are kept until somebody takes them."""

from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.nvml.core.xids import LAST_KIND, PendingXids, XidEvent

GPUS = ("a", "b")
EVENTS = st.builds(
    XidEvent, st.sampled_from(GPUS), st.sampled_from([13, 31, 48, 79, 95]), st.none() | st.integers(0, 6)
)


def pending(*events: XidEvent) -> PendingXids:
    xids = PendingXids()
    for event in events:
        xids.add(event)
    return xids


def test_a_flood_of_one_kind_pushes_out_no_other() -> None:
    flood = [XidEvent("a", 31)] * 5000

    taken = pending(XidEvent("a", 79), XidEvent("a", 48, 3), *flood).take(GPUS)

    assert taken == [XidEvent("a", 79), XidEvent("a", 48, 3), XidEvent("a", 31, times=5000)]


@given(st.lists(EVENTS, max_size=60))
def test_the_last_of_each_kind_and_device_is_taken_once_in_the_order_it_happened(
    events: list[XidEvent],
) -> None:
    xids = pending(*events)

    taken = xids.take(GPUS)

    bare = [XidEvent(event.gpu_uuid, event.xid, event.instance) for event in taken]
    assert bare == list(dict.fromkeys(reversed(events)))[::-1]
    assert [event.times for event in taken] == [events.count(event) for event in bare]
    assert xids.take(GPUS) == []


def test_errors_of_a_gpu_that_was_not_met_yet_wait_for_it() -> None:
    xids = pending(XidEvent("a", 79), XidEvent("b", 31))

    first, second = xids.take({"b"}), xids.take(GPUS)

    assert (first, second) == ([XidEvent("b", 31)], [XidEvent("a", 79)])


def test_numbers_that_are_no_errors_do_not_grow_without_bound() -> None:
    taken = pending(*(XidEvent("a", LAST_KIND + beyond) for beyond in range(5000))).take(GPUS)

    assert taken == [XidEvent("a", LAST_KIND + 4999, times=5000)]
