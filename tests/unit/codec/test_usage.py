from collections.abc import Callable

import pytest
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
        # A database's numbers end at 2^63, and a year of windows must add up to less.
        assert max(usage.energy_mj or 0, usage.memory_peak_bytes or 0) < 2**51
    assert (window.start.timestamp() + window.duration_ns / 1e9) * 1e9 < 2**63


@pytest.mark.parametrize(
    "spoil",
    [
        lambda window: window.start.FromSeconds(253_402_300_799),
        lambda window: setattr(window, "node_uid", "n\0"),
        lambda window: setattr(window.devices[0].pod, "name", "p\0"),
        lambda window: setattr(window.devices[0], "energy_mj", 2**63),
        lambda window: setattr(window.devices[0], "memory_peak_bytes", 2**63),
    ],
)
def test_a_window_that_no_database_could_keep_is_refused(spoil: Callable[[pb.UsageWindow], None]) -> None:
    """The reader passes over it: one that is handed on would come again for ever."""
    message = pb.UsageWindow(sequence=1, duration_ns=10, node_uid="n")
    device = message.devices.add(held_ns=5)
    device.pod.uid, device.device.gpu_uuid = "p", "GPU-1"
    message.start.FromSeconds(1_800_000_000)
    window_from_proto(message)

    spoil(message)

    with pytest.raises(InvalidRequestError):
        window_from_proto(message)
