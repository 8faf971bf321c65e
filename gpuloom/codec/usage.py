"""Usage windows and where spools stand: proto <-> model."""

import math
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.codec.device import (
    MAX_HELD_DEVICES_PER_NODE,
    bounded,
    device_from_proto,
    device_to_proto,
    pod_from_proto,
    pod_to_proto,
    required,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.usage import DeviceUsage, UsagePosition, UsageWindow
from gpuloom.v1 import usage_pb2 as pb

MAX_SPOOLS = 64
MAX_WINDOW_NS = 24 * 3_600_000_000_000
"""Windows are about a minute long; one longer than a day is a mistake of whoever wrote it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = 2**33
"""The year 2242: what is later is a mistake, and fits no column of a database."""
_MOST_ENERGY_MJ = 10**13
"""More than a hundred kilowatts for a day."""
_MOST_MEMORY_BYTES = 2**50


def window_to_proto(window: UsageWindow) -> pb.UsageWindow:
    return pb.UsageWindow(
        sequence=window.sequence,
        start=_timestamp(window.start),
        duration_ns=window.duration_ns,
        devices=[_usage_to_proto(usage) for usage in window.devices],
        node_uid=window.node_uid,
    )


def window_from_proto(message: pb.UsageWindow) -> UsageWindow:
    if message.sequence < 1:
        raise InvalidRequestError("a usage window without a number")
    if not 0 < message.duration_ns <= MAX_WINDOW_NS:
        raise InvalidRequestError(f"a usage window of {message.duration_ns} ns")
    # Each device that nobody holds has a row, too.
    if len(message.devices) > 2 * MAX_HELD_DEVICES_PER_NODE:
        raise InvalidRequestError("a usage window of more devices than a node can have")
    return UsageWindow(
        sequence=message.sequence,
        node_uid=bounded(message.node_uid, "node UID"),
        start=_moment(message.start),
        duration_ns=message.duration_ns,
        devices=tuple(_usage_from_proto(usage, message.duration_ns) for usage in message.devices),
    )


def position_to_proto(position: UsagePosition) -> pb.UsagePosition:
    return pb.UsagePosition(spool_id=position.spool_id, first=position.first, last=position.last)


def position_from_proto(message: pb.UsagePosition) -> UsagePosition:
    if not 1 <= message.first <= message.last + 1:
        raise InvalidRequestError(f"a spool from {message.first} to {message.last}")
    return UsagePosition(required(message.spool_id, "spool id"), message.first, message.last)


def _usage_to_proto(usage: DeviceUsage) -> pb.DeviceUsage:
    return pb.DeviceUsage(
        pod=None if usage.pod is None else pod_to_proto(usage.pod),
        device=device_to_proto(usage.device),
        milli=usage.milli,
        held_ns=usage.held_ns,
        measured_ns=usage.measured_ns,
        used_ns=usage.used_ns,
        memory_mean_bytes=usage.memory_mean_bytes,
        memory_peak_bytes=usage.memory_peak_bytes,
        energy_mj=usage.energy_mj,
        utilization_peak=usage.utilization_peak,
    )


def _usage_from_proto(message: pb.DeviceUsage, duration_ns: int) -> DeviceUsage:
    if not message.used_ns <= message.measured_ns <= message.held_ns <= duration_ns:
        raise InvalidRequestError("a usage window with more use than time")
    if message.HasField("milli") and not 1 <= message.milli <= MILLI_PER_GPU:
        raise InvalidRequestError(f"a device has 1 to {MILLI_PER_GPU} milli, not {message.milli}")
    memory_bytes = max(message.memory_mean_bytes, message.memory_peak_bytes)
    if message.energy_mj > _MOST_ENERGY_MJ or memory_bytes > _MOST_MEMORY_BYTES:
        raise InvalidRequestError("a usage window with more energy or memory than a device can have")
    peak = message.utilization_peak if message.HasField("utilization_peak") else None
    if peak is not None and not (math.isfinite(peak) and 0.0 <= peak <= 1.0):
        raise InvalidRequestError("a utilisation that is not from 0 to 1")
    return DeviceUsage(
        device=device_from_proto(message.device),
        pod=pod_from_proto(message.pod) if message.HasField("pod") else None,
        milli=message.milli if message.HasField("milli") else None,
        held_ns=message.held_ns,
        measured_ns=message.measured_ns,
        used_ns=message.used_ns,
        memory_mean_bytes=message.memory_mean_bytes if message.HasField("memory_mean_bytes") else None,
        memory_peak_bytes=message.memory_peak_bytes if message.HasField("memory_peak_bytes") else None,
        energy_mj=message.energy_mj if message.HasField("energy_mj") else None,
        utilization_peak=peak,
    )


def _timestamp(moment: datetime) -> Timestamp:
    since = moment - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1000)


def _moment(message: Timestamp) -> datetime:
    if not 0 <= message.seconds <= _LAST_SECOND or not 0 <= message.nanos < 1_000_000_000:
        raise InvalidRequestError("a usage window that began at no time")
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
