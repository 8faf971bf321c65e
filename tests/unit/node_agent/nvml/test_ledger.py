"""What is known of GPUs that answer, fail, vanish and come back."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.topology import PcieLevel
from services.node_agent.core.readings import DriverReading, GpuSample
from services.node_agent.nvml.account import reading_of
from services.node_agent.nvml.core.failure import failure_of_code
from services.node_agent.nvml.core.health import HealthFacts
from services.node_agent.nvml.core.topology import PairFacts, Wiring
from services.node_agent.nvml.core.xids import XidEvent
from services.node_agent.nvml.inventory import Identity
from services.node_agent.nvml.ledger import GONE, Ledger, Place
from services.node_agent.nvml.mig import MigLayout
from services.node_agent.nvml.processes import ListedProcess
from services.node_agent.nvml.record import Record
from services.node_agent.nvml.session import Acquaintance, Look, SlowPart
from services.node_agent.nvml.usage import SlowSample

WELL = HealthFacts(recovery_action=0)
LOST = failure_of_code(15, "GPU is lost")
PLACEMENT = MigPlacement(4, "3g.20gb")
CUT = MigLayout(True, (MigInstance(PLACEMENT, 4, 20096, "MIG-a"),), (7,))


def a_look(uuid: str, layout: MigLayout | None = None) -> Look:
    identity = Identity(uuid, "A100-SXM4-40GB", "ampere", 40960, f"PCI-{uuid}", None, "")
    return Look(
        known=Acquaintance(None, identity, None, measures_activity=False),
        facts=WELL,
        slow=SlowPart(SlowSample(), layout or MigLayout()),
        sample=GpuSample(memory_used_mib=1),
        memories={},
        processes=(ListedProcess(1, None, 10, None),),
        activity={},
    )


def a_place(index: int, look: Look) -> Place:
    return Place(index, look.known.identity.uuid, look, None)


def a_ledger(*looks: Look) -> Ledger:
    """Of a node whose GPUs answered like this."""
    ledger = Ledger()
    for index, look in enumerate(looks):
        ledger.meet(look, index)
    ledger.judge([a_place(index, look) for index, look in enumerate(looks)], now_s=0.0)
    return ledger


def healths(ledger: Ledger) -> dict[str, GpuHealth]:
    return {uuid: memory.health[0] for uuid, memory in ledger.memories.items()}


def restarted(ledger: Ledger, now_s: float = 1.0) -> Ledger:
    after = Ledger()
    after.restore(ledger.record(), now_s)
    return after


def reading(ledger: Ledger) -> DriverReading:
    return reading_of(ledger, "580.65.06")


def test_a_gpu_that_is_not_shown_any_more_is_lost_and_tells_nothing_of_now() -> None:
    a, b = a_look("a"), a_look("b")
    ledger = a_ledger(a, b)

    ledger.judge([a_place(0, a)], now_s=1.0)

    assert ledger.memories["b"].health == (GpuHealth.LOST, GONE)
    assert reading(ledger).samples.keys() == {"a"}
    assert reading(ledger).processes.keys() == {"a"}


def test_a_gpu_that_can_not_say_who_it_is_is_the_one_that_sat_there() -> None:
    ledger = restarted(a_ledger(a_look("a"), a_look("b")))

    ledger.judge([a_place(0, a_look("a")), Place(1, "", None, LOST)], now_s=1.0)

    assert ledger.memories["b"].health == (GpuHealth.LOST, LOST.text)
    assert healths(ledger)["a"] is GpuHealth.HEALTHY


def test_a_gpu_that_was_lost_before_a_restart_does_not_hide_how_the_others_are_linked() -> None:
    a, c = a_look("a"), a_look("c")
    ledger = restarted(a_ledger(a, a_look("b"), c))
    ledger.note_wiring("a", Wiring((), {"c": PairFacts(ancestor=10)}))
    ledger.note_wiring("c", Wiring((), {}))
    not_judged = reading(ledger).topology

    ledger.judge([a_place(0, a), a_place(2, c)], now_s=1.0)

    topology = reading(ledger).topology
    assert not_judged is None
    assert topology is not None
    assert topology.pcie == (PcieLevel.UNKNOWN, PcieLevel.PIX, PcieLevel.UNKNOWN)


def test_a_gpu_that_has_not_answered_yet_is_not_taken_for_lost() -> None:
    ledger = restarted(a_ledger(a_look("a")))

    ledger.judge([Place(0, "", None, None)], now_s=1.0)

    assert healths(ledger) == {"a": GpuHealth.UNKNOWN}


def test_a_slow_gpu_keeps_its_last_sample_until_that_is_too_old() -> None:
    a, b = a_look("a"), a_look("b")
    ledger = Ledger(hold_s=12.0)
    ledger.meet(a, 0)
    ledger.meet(b, 1)
    ledger.judge([a_place(0, a), a_place(1, b)], now_s=100.0)

    slow = [Place(0, "a", None, None), a_place(1, b)]
    ledger.judge(slow, now_s=112.0)
    held = reading(ledger)
    ledger.judge(slow, now_s=112.5)
    old = reading(ledger)

    assert (set(held.samples), [usage.gpu_uuid for usage in held.usage]) == ({"a", "b"}, ["b"])
    assert set(old.samples) == {"b"}


def test_a_gpu_that_failed_keeps_no_sample() -> None:
    a = a_look("a")
    ledger = Ledger(hold_s=12.0)
    ledger.meet(a, 0)
    ledger.judge([a_place(0, a)], now_s=100.0)

    ledger.judge([Place(0, "a", None, LOST)], now_s=101.0)

    assert reading(ledger).samples == {}


def test_an_error_of_a_gpu_that_is_not_known_is_nobodys() -> None:
    ledger = a_ledger(a_look("a"))

    ledger.hear(XidEvent("stranger", 79), now_s=1.0)

    assert reading(ledger).last_xids == {}


def test_an_error_of_a_slice_that_is_gone_is_forgotten_with_it() -> None:
    ledger = a_ledger(a_look("a", CUT))
    ledger.hear(XidEvent("a", 95, instance=7), now_s=1.0)
    told = reading(ledger)

    ledger.meet(a_look("a", MigLayout(enabled=True)), 0)

    assert told.last_xids == {DeviceRef("a", PLACEMENT): 95}
    assert told.gpus[0].mig_instances[0].fault != ""
    assert reading(ledger).last_xids == {}
    assert ledger.memories["a"].condition.faults == ()


def test_slices_that_can_not_be_listed_just_now_are_kept() -> None:
    ledger = a_ledger(a_look("a", CUT))

    ledger.meet(a_look("a", MigLayout(enabled=True, failure=failure_of_code(4, "no"))), 0)

    assert reading(ledger).gpus[0].mig_instances == CUT.instances


def test_a_fault_from_the_future_is_one_of_now() -> None:
    ledger = a_ledger(a_look("a"))
    ledger.hear(XidEvent("a", 95), now_s=1000.0)

    after = restarted(ledger, now_s=5.0)

    assert [fault.at_s for fault in after.memories["a"].condition.faults] == [5.0]


def test_a_card_in_the_place_of_another_leaves_nothing_of_it() -> None:
    ledger = a_ledger(a_look("a"))
    card = a_look("b")
    known = replace(card.known, identity=replace(card.known.identity, pci_bus_id="PCI-a"))

    ledger.meet(replace(card, known=known), 0)

    assert set(ledger.memories) == set(ledger.roster) == {"b"}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 200), st.none() | st.integers(0, 9)), max_size=12
    )
)
def test_a_restart_changes_nothing_that_is_kept(events: list[tuple[str, int, int | None]]) -> None:
    ledger = a_ledger(a_look("a"), a_look("b", CUT))
    for uuid, xid, instance in events:
        ledger.hear(XidEvent(uuid, xid, instance), now_s=1.0)

    after = restarted(ledger)

    assert after.record() == ledger.record()
    assert restarted(Ledger()).record() == Record()
