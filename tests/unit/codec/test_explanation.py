"""Explanations and forecasts survive the wire."""

from datetime import UTC, datetime

import pytest

from gpuloom.codec.explanation import (
    explanation_from_proto,
    explanation_to_proto,
    forecast_from_proto,
    forecast_to_proto,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.explanation import (
    Change,
    Explanation,
    Forecast,
    Judgement,
    NearMiss,
    Offer,
    PodStanding,
    QuarantineNotice,
    ReasonCount,
)
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import Decision, Verdict
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.v1 import scheduler_extender_pb2 as pb

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
POD = PodRef("team", "train-0", "uid")
DEVICES = (AllocatedDevice(DeviceRef("GPU-1", MigPlacement(4, "3g.20gb")), 500, 20_096),)
OFFER = Offer("n1", DEVICES, 80.5, 50.0, 90.25, 100.0)
JUDGEMENT = Judgement(
    12,
    1,
    (OFFER,),
    (ReasonCount("closed", 11, resolvable=True),),
    (NearMiss("n2", "2 of 4 GPUs free"),),
    (Change("less", 3, "n3"),),
)


@pytest.mark.parametrize("standing", list(PodStanding))
def test_an_explanation_is_the_same_after_the_wire(standing: PodStanding) -> None:
    explanation = Explanation(
        POD,
        standing,
        request="asks",
        problem="bad",
        node_name="n1",
        devices=DEVICES,
        judgement=JUDGEMENT,
        quarantine=QuarantineNotice(NOW, 4, whole_controller=True),
        decisions=(Decision(NOW, POD, Verdict.BIND_FAILED, "n1", reason="no"),),
        note="note",
    )

    assert explanation_from_proto(explanation_to_proto(explanation)) == explanation


def test_what_is_not_known_stays_so() -> None:
    explanation = Explanation(PodRef("team", "", ""), PodStanding.UNMANAGED)

    assert explanation_from_proto(explanation_to_proto(explanation)) == explanation


@pytest.mark.parametrize("judgement", [None, JUDGEMENT])
def test_a_forecast_is_the_same_after_the_wire(judgement: Judgement | None) -> None:
    forecast = Forecast(3, "asks", "", (OFFER, OFFER), judgement, "note")

    assert forecast_from_proto(forecast_to_proto(forecast)) == forecast


def test_an_answer_that_says_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="how things stand"):
        explanation_from_proto(pb.ExplainResponse())


def test_a_time_that_no_calendar_has_is_refused() -> None:
    message = explanation_to_proto(
        Explanation(POD, PodStanding.REFUSED, quarantine=QuarantineNotice(NOW, 1, False))
    )
    message.quarantine.until.seconds = 2**62

    with pytest.raises(InvalidRequestError, match="calendar"):
        explanation_from_proto(message)
