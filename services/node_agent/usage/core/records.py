"""How windows stand in a segment file. Pure: bytes in, bytes out.

header   magic, spool id, number of the first window, checksum
record   length of the window, checksum, the window as its proto

A segment is read until its end or until something that is no record: what stands behind it is not believed.
"""

import struct
import zlib
from dataclasses import dataclass

MAGIC = b"gpuloom-usage-1\n"
ID_LENGTH = 32
MAX_RECORD_BYTES = 4 * 1024 * 1024

_HEADER = struct.Struct(f"<{len(MAGIC)}s{ID_LENGTH}sQ")
_RECORD = struct.Struct("<II")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
RECORD_OVERHEAD_BYTES = _RECORD.size


@dataclass(frozen=True, slots=True)
class Segment:
    """What can be read of a segment. `good_bytes` is where it stops to be readable."""

    spool_id: str
    first: int
    windows: tuple[bytes, ...]
    good_bytes: int


def header(spool_id: str, first: int) -> bytes:
    fields = _HEADER.pack(MAGIC, spool_id.encode("ascii"), first)
    return fields + _CHECKSUM.pack(zlib.crc32(fields))


def record(window: bytes) -> bytes:
    if not 0 < len(window) <= MAX_RECORD_BYTES:
        raise ValueError(f"a window of {len(window)} bytes")
    return _RECORD.pack(len(window), _checksum(window)) + window


def read_segment(data: bytes) -> Segment | None:
    """None if this is no segment."""
    if len(data) < HEADER_BYTES:
        return None
    magic, spool_id, first = _HEADER.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if magic != MAGIC or checksum != zlib.crc32(data[: _HEADER.size]) or first < 1:
        return None
    windows, at = [], HEADER_BYTES
    while (window := _record_at(data, at)) is not None:
        windows.append(window)
        at += RECORD_OVERHEAD_BYTES + len(window)
    return Segment(spool_id.decode("ascii"), first, tuple(windows), at)


def _record_at(data: bytes, at: int) -> bytes | None:
    if at + RECORD_OVERHEAD_BYTES > len(data):
        return None
    length, checksum = _RECORD.unpack_from(data, at)
    begin = at + RECORD_OVERHEAD_BYTES
    # A stretch of zeros, as a power loss leaves it, is no record of length 0.
    if not 0 < length <= MAX_RECORD_BYTES or begin + length > len(data):
        return None
    window = data[begin : begin + length]
    return window if _checksum(window) == checksum else None


def _checksum(window: bytes) -> int:
    return zlib.crc32(window, len(window))
