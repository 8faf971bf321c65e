import pytest
from hypothesis import given, settings

from gpuloom.codec.device import MAX_TEXT_LENGTH
from gpuloom.codec.ledger import decision_from_proto, decision_to_proto, entry_from_proto, entry_to_proto
from gpuloom.codec.node_ledger import node_ledger_from_proto, node_ledger_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.ledger import Decision, LedgerEntry, NodeLedger
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.types_pb2 import AllocatedDevice, DeviceRef
from tests.effort import examples
from tests.strategies import DECISIONS, ENTRIES, NODE_LEDGERS, hostile


@settings(max_examples=examples(50))
@given(DECISIONS)
def test_a_decision_survives_the_wire(decision: Decision) -> None:
    written = decision_to_proto(decision).SerializeToString()

    assert decision_from_proto(pb.Decision.FromString(written)) == decision


@settings(max_examples=examples(50))
@given(ENTRIES)
def test_an_entry_survives_the_wire_and_unknown_devices_stay_unknown(entry: LedgerEntry) -> None:
    assert entry_from_proto(pb.LedgerEntry.FromString(entry_to_proto(entry).SerializeToString())) == entry


@settings(max_examples=examples(50))
@given(NODE_LEDGERS)
def test_what_is_said_of_a_node_survives_the_wire(ledger: NodeLedger) -> None:
    written = node_ledger_to_proto(ledger).SerializeToString()

    assert node_ledger_from_proto(pb.NodeLedger.FromString(written)) == ledger


@settings(max_examples=examples(50))
@given(hostile(pb.NodeLedger))
def test_a_hostile_node_ledger_is_refused_or_whole(message: pb.NodeLedger) -> None:
    try:
        ledger = node_ledger_from_proto(message)
    except InvalidRequestError:
        return

    assert node_ledger_from_proto(node_ledger_to_proto(ledger)) == ledger


@settings(max_examples=examples(50))
@given(hostile(pb.Decision))
def test_a_hostile_decision_is_refused_or_whole(message: pb.Decision) -> None:
    try:
        decision = decision_from_proto(message)
    except InvalidRequestError:
        return

    assert decision_from_proto(decision_to_proto(decision)) == decision


@settings(max_examples=examples(50))
@given(hostile(pb.LedgerEntry))
def test_a_hostile_entry_is_refused_or_whole(message: pb.LedgerEntry) -> None:
    try:
        entry = entry_from_proto(message)
    except InvalidRequestError:
        return

    assert entry_from_proto(entry_to_proto(entry)) == entry


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63), 253402300800])
def test_a_time_that_no_calendar_has_is_refused(seconds: int) -> None:
    message = pb.Decision(verdict=pb.VERDICT_BOUND)
    message.time.seconds = seconds

    with pytest.raises(InvalidRequestError, match="calendar"):
        decision_from_proto(message)


@pytest.mark.parametrize("value", [0, 99, -1])
def test_a_verdict_or_a_state_that_is_not_known_is_refused(value: int) -> None:
    decision, entry = pb.Decision(), pb.LedgerEntry()
    decision.verdict = value  # type: ignore[assignment]
    entry.state = value  # type: ignore[assignment]

    with pytest.raises(InvalidRequestError, match="verdict"):
        decision_from_proto(decision)
    with pytest.raises(InvalidRequestError, match="state"):
        entry_from_proto(entry)


@pytest.mark.parametrize("milli", [0, 1001])
def test_a_share_outside_one_gpu_is_refused(milli: int) -> None:
    device = AllocatedDevice(device=DeviceRef(gpu_uuid="GPU-a"), milli=milli)

    with pytest.raises(InvalidRequestError, match="milli"):
        entry_from_proto(pb.LedgerEntry(state=pb.ENTRY_STATE_OBSERVED, devices=[device]))


def test_a_long_reason_is_cut_short() -> None:
    message = pb.Decision(verdict=pb.VERDICT_REFUSED, reason="no " * 1000)

    assert len(decision_from_proto(message).reason) == MAX_TEXT_LENGTH
