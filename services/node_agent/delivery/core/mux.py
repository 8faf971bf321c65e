"""Several connections over one socket: frames of connection id, length and bytes. Pure.

Decides where a frame ends, and that a frame beyond the bound is no frame. Never looks into the bytes.
"""

import struct
from dataclasses import dataclass

from gpuloom.errors import GpuloomError

PLUGIN_CONNECTION = 1
"""The runtime calls us."""
RUNTIME_CONNECTION = 2
"""We call the runtime."""

MAX_FRAME_BYTES = 4 * 1024 * 1024 + 64
"""A message of the largest size with its header fits into one frame."""

_HEADER = struct.Struct(">II")


class WireError(GpuloomError):
    """The other side sent what can't be a frame or a message; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Frame:
    connection: int
    content: bytes


class FrameDecoder:
    """Takes bytes as they come and holds at most one frame that is not complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[Frame]:
        """The frames that are complete now. Raise WireError if a frame is beyond the bound."""
        self._buffer += received
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            connection, length = _HEADER.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {length} bytes is beyond the bound of {MAX_FRAME_BYTES}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(connection, bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def encode_frame(connection: int, content: bytes) -> bytes:
    if len(content) > MAX_FRAME_BYTES:
        raise WireError(f"{len(content)} bytes do not fit into a frame")
    return _HEADER.pack(connection, len(content)) + content
