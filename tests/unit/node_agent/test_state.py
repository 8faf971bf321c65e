from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.gpu import Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import HolderSource, NodeState
from services.node_agent.core.readings import DriverReading
from services.node_agent.core.state import next_state
from tests.effort import examples
from tests.unit.node_agent.builders import PAIR, a_gpu, a_holder, a_look, a_reading, a_start

BOTH = a_reading(a_gpu("GPU-a", 0), a_gpu("GPU-b", 1))
DOWN = "the driver does not answer"


def test_before_the_first_look_nothing_is_known_and_nobody_is_vouched_for() -> None:
    state = a_start()

    assert (state.node_uid, state.gpus) == ("", ())
    assert state.holders_unknown_reason == "the agent has just started"


def test_one_look_shows_the_whole_node() -> None:
    state = next_state(a_start(), a_look(BOTH, holders=(a_holder(),)))

    assert (state.node_uid, state.topology) == ("uid-n1", PAIR)
    assert [gpu.uuid for gpu in state.gpus] == ["GPU-a", "GPU-b"]
    assert (state.holders, state.holders_unknown_reason) == ((a_holder(),), "")


def test_a_gpu_that_is_gone_stays_as_lost_and_comes_back_as_it_is() -> None:
    before = next_state(a_start(), a_look(BOTH))

    lost = next_state(before, a_look(a_reading(a_gpu("GPU-b", 1))))
    back = next_state(lost, a_look(BOTH))

    assert [(gpu.uuid, gpu.health) for gpu in lost.gpus] == [
        ("GPU-a", GpuHealth.LOST),
        ("GPU-b", GpuHealth.HEALTHY),
    ]
    assert lost.gpus[0].health_reason
    assert lost.usage[0] == GpuUsage("GPU-a")
    assert back == before


def test_a_driver_that_is_down_leaves_every_gpu_there_with_unknown_health() -> None:
    before = next_state(a_start(), a_look(BOTH))

    down = next_state(before, a_look(None, driver_problem=DOWN))

    assert [(gpu.health, gpu.health_reason) for gpu in down.gpus] == [(GpuHealth.UNKNOWN, DOWN)] * 2
    assert down.usage == (GpuUsage("GPU-a"), GpuUsage("GPU-b"))
    assert down.topology == PAIR
    assert next_state(down, a_look(BOTH)) == before


def test_a_lost_gpu_is_not_forgotten_while_the_driver_is_down() -> None:
    seen = next_state(a_start(), a_look(BOTH))
    lost = next_state(seen, a_look(a_reading(a_gpu("GPU-a", 0))))

    down = next_state(lost, a_look(None, driver_problem=DOWN))
    up = next_state(down, a_look(a_reading(a_gpu("GPU-a", 0))))

    assert [gpu.uuid for gpu in down.gpus] == ["GPU-a", "GPU-b"]
    assert [gpu.health for gpu in up.gpus] == [GpuHealth.HEALTHY, GpuHealth.LOST]


def test_a_replaced_card_takes_the_place_of_the_one_before() -> None:
    before = next_state(a_start(), a_look(BOTH))

    replaced = next_state(before, a_look(a_reading(a_gpu("GPU-new", 0), a_gpu("GPU-b", 1))))

    assert [(gpu.uuid, gpu.index) for gpu in replaced.gpus] == [("GPU-new", 0), ("GPU-b", 1)]
    assert [usage.gpu_uuid for usage in replaced.usage] == ["GPU-b", "GPU-new"]


def test_holders_that_can_not_be_read_stay_as_they_were_with_the_reason() -> None:
    before = next_state(a_start(), a_look(BOTH, holders=(a_holder(),)))

    unknown = next_state(before, a_look(BOTH, holders=(), holders_problem="the kubelet does not answer"))
    known = next_state(unknown, a_look(BOTH, holders=()))

    assert unknown.holders == (a_holder(),)
    assert unknown.holders_unknown_reason == "the kubelet does not answer"
    assert (known.holders, known.holders_unknown_reason) == ((), "")


def test_a_node_s_uid_is_kept_while_kubernetes_does_not_tell_it() -> None:
    before = next_state(a_start(), a_look(BOTH))

    assert next_state(before, a_look(BOTH, node_uid="")).node_uid == "uid-n1"
    assert next_state(before, a_look(BOTH, node_uid="uid-new")).node_uid == "uid-new"


def test_holders_come_in_one_order_however_they_were_listed() -> None:
    by_process = [a_holder("a", uuid, source=HolderSource.PROCESS) for uuid in ("GPU-b", "GPU-a")]
    holders = (a_holder("b"), a_holder("a"), *by_process)

    assert next_state(a_start(), a_look(BOTH, holders=holders)) == next_state(
        a_start(), a_look(BOTH, holders=holders[::-1])
    )


@st.composite
def readings(draw: st.DrawFn) -> DriverReading | None:
    """A driver that is down, or any cards in any slots."""
    if draw(st.integers(0, 3)) == 0:
        return None
    slots = draw(st.dictionaries(st.integers(0, 3), st.sampled_from("abcdef"), max_size=4))
    cards = {card: a_gpu(f"GPU-{card}", index) for index, card in slots.items()}
    return a_reading(*cards.values())


@settings(max_examples=examples(50))
@given(st.lists(readings(), max_size=12))
def test_whatever_the_driver_shows_a_state_has_each_gpu_and_each_index_once(
    looks: list[DriverReading | None],
) -> None:
    state = a_start()

    for reading in looks:
        state = next_state(state, a_look(reading, driver_problem="" if reading else DOWN))
        assert_sound(state, reading)


def assert_sound(state: NodeState, reading: DriverReading | None) -> None:
    indexes = [gpu.index for gpu in state.gpus]
    uuids = [gpu.uuid for gpu in state.gpus]
    shown: tuple[Gpu, ...] = reading.gpus if reading else ()
    assert indexes == sorted(set(indexes))
    assert sorted(uuids) == [usage.gpu_uuid for usage in state.usage]
    assert len(set(uuids)) == len(uuids)
    assert {gpu for gpu in state.gpus if gpu.health is GpuHealth.HEALTHY} == set(shown)
