"""A cloud's notice: proto <-> model."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.codec.device import bounded
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.v1 import types_pb2 as pb

_KIND_TO_PROTO = {
    SpotNoticeKind.INTERRUPTION: pb.SPOT_NOTICE_KIND_INTERRUPTION,
    SpotNoticeKind.REBALANCE: pb.SPOT_NOTICE_KIND_REBALANCE,
}


def spot_from_proto(message: pb.SpotNotice) -> SpotNotice:
    """A kind that is not known is a hint: nobody drains a node for a word that this version can't read."""
    interruption = message.kind == pb.SPOT_NOTICE_KIND_INTERRUPTION
    return SpotNotice(
        kind=SpotNoticeKind.INTERRUPTION if interruption else SpotNoticeKind.REBALANCE,
        time=_time(message.time) if message.HasField("time") else None,
        cloud=bounded(message.cloud, "cloud"),
        action=bounded(message.action, "spot action"),
    )


def spot_to_proto(notice: SpotNotice) -> pb.SpotNotice:
    time = None
    if notice.time is not None:
        time = Timestamp()
        time.FromDatetime(notice.time)
    return pb.SpotNotice(
        kind=_KIND_TO_PROTO[notice.kind], time=time, cloud=notice.cloud, action=notice.action
    )


def _time(message: Timestamp) -> datetime | None:
    """A time beyond what a calendar holds is not known."""
    try:
        return message.ToDatetime(UTC)
    except (OverflowError, ValueError):
        return None
