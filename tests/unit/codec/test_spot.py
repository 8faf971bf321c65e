from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.spot import spot_from_proto, spot_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.v1 import types_pb2 as pb
from tests.strategies import hostile

TIMES = st.datetimes(timezones=st.just(UTC))
NOTICES = st.builds(
    SpotNotice,
    kind=st.sampled_from(SpotNoticeKind),
    time=st.none() | TIMES,
    cloud=st.sampled_from(["aws", "gcp", "azure", ""]),
    action=st.text("abc", max_size=10),
)


@given(NOTICES)
def test_a_notice_survives_the_wire(notice: SpotNotice) -> None:
    assert spot_from_proto(spot_to_proto(notice)) == notice


@given(hostile(pb.SpotNotice))
def test_any_notice_is_decoded_or_refused(message: pb.SpotNotice) -> None:
    try:
        notice = spot_from_proto(message)
    except InvalidRequestError:
        return

    assert spot_from_proto(spot_to_proto(notice)) == notice


def test_a_kind_that_is_not_known_is_only_a_hint() -> None:
    assert spot_from_proto(pb.SpotNotice(kind=99)).kind is SpotNoticeKind.REBALANCE  # type: ignore[arg-type]


def test_a_time_that_no_calendar_holds_is_not_known() -> None:
    message = pb.SpotNotice(kind=pb.SPOT_NOTICE_KIND_INTERRUPTION, time=Timestamp(seconds=2**62))

    assert spot_from_proto(message) == SpotNotice(SpotNoticeKind.INTERRUPTION, None, "")
