from hypothesis import given, settings

from gpuloom.codec.usage import window_from_proto, window_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.v1 import usage_pb2 as pb
from tests.effort import examples
from tests.strategies import hostile


@settings(max_examples=examples(100))
@given(hostile(pb.UsageWindow))
def test_a_hostile_window_is_refused_or_whole(message: pb.UsageWindow) -> None:
    try:
        window = window_from_proto(message)
    except InvalidRequestError:
        return

    assert window_from_proto(window_to_proto(window)) == window
    for usage in window.devices:
        assert 0 <= usage.used_ns <= usage.measured_ns <= usage.held_ns <= window.duration_ns
