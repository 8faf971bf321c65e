"""Calls and answers in the envelopes of ttrpc. Pure.

Decides where a message ends and whether it is a call or an answer. Never decides what a call means.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError

from gpuloom.nri.nri_pb2 import Request, Response, Status
from services.node_agent.delivery.core.mux import WireError

MAX_MESSAGE_BYTES = 4 * 1024 * 1024

_HEADER = struct.Struct(">IIBB")


class Kind(IntEnum):
    REQUEST = 1
    RESPONSE = 2


class Code(IntEnum):
    """The status codes of gRPC that we answer with."""

    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13


@dataclass(frozen=True, slots=True)
class Message:
    stream: int
    kind: Kind
    content: bytes


class MessageDecoder:
    """Takes the bytes of one connection, however frames cut them, and holds at most one open message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[Message]:
        """The messages that are complete now. Raise WireError for what is none, or is beyond the bound."""
        self._buffer += received
        messages = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(self._buffer, start)
            if length > MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {length} bytes is beyond the bound of {MAX_MESSAGE_BYTES}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(Message(stream, _kind(kind), bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return messages


def encode_message(message: Message) -> bytes:
    if len(message.content) > MAX_MESSAGE_BYTES:
        raise WireError(f"{len(message.content)} bytes do not fit into a message")
    return _HEADER.pack(len(message.content), message.stream, message.kind, 0) + message.content


def call(stream: int, service: str, method: str, payload: bytes) -> Message:
    request = Request(service=service, method=method, payload=payload)
    return Message(stream, Kind.REQUEST, request.SerializeToString())


def answer(stream: int, payload: bytes) -> Message:
    # Without a status an answer is read as a failure by some runtimes.
    return Message(stream, Kind.RESPONSE, Response(status=Status(), payload=payload).SerializeToString())


def failure(stream: int, code: Code, reason: str) -> Message:
    response = Response(status=Status(code=code, message=reason))
    return Message(stream, Kind.RESPONSE, response.SerializeToString())


def read_call(message: Message) -> Request:
    """Raise WireError if it is not one."""
    try:
        return Request.FromString(message.content)
    except DecodeError:
        raise WireError("a call can't be decoded") from None


def read_answer(message: Message) -> Response:
    """Raise WireError if it is not one."""
    try:
        return Response.FromString(message.content)
    except DecodeError:
        raise WireError("an answer can't be decoded") from None


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise WireError(f"a message of type {number} is not known") from None
