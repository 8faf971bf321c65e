"""Heads of HTTP/2 requests: what of a block of headers matters, and when it is malformed.

We allow the client no dynamic table. Once it heeds that, a block means the same wherever it comes, and so
does every field in it. kube-scheduler's blocks are few, and their fields fewer: each is read once, and then
recalled. Before, a block takes a decoder with state.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import hpack

from services.scheduler_extender.framing import MAX_HEAD_BYTES

_RECALLED = 2048
"""Heads differ in path and content-length alone, and lengths repeat; most fields are the same in all."""
_LONGEST_RECALLED_BYTES = 512
"""However much so few bytes stand for, it is less than MAX_HEAD_BYTES."""

# How a field begins, and where its numbers go on in a further byte.
_INDEXED = 0x80
_WITH_TABLE = 0x40
_RESIZE = 0x20
_NAMES_WITH_TABLE = 0x3F
_NAMES = 0x0F
_GOES_ON = 0x80
_LENGTH_MASK = 0x7F

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\0\r\n]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_REQUIRED = (b":method", b":scheme", b":path")
_PSEUDO = frozenset((*_REQUIRED, b":authority"))
_OF_A_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


class HeadTooLargeError(Exception):
    pass


class UnreadableHeadError(Exception):
    """What follows can't be read either, as both ends no longer know the same."""


class Head(NamedTuple):
    """`announced_bytes` is -1 if the head does not say how long its body is."""

    method: bytes
    target: bytes
    announced_bytes: int


class Heads:
    """Reads the blocks of one connection, in their order. None stands for a head that is malformed."""

    def __init__(self) -> None:
        self._decoder: hpack.Decoder | None = hpack.Decoder(MAX_HEAD_BYTES)

    def forbid_table(self) -> None:
        """The client has seen our settings: from now on it keeps no table."""
        if self._decoder is not None:
            self._decoder.max_allowed_table_size = 0

    def read(self, block: bytes) -> Head | None:
        decoder = self._decoder
        if decoder is None:
            return _recalled(block) if len(block) <= _LONGEST_RECALLED_BYTES else _read_alone(block)
        fields = _decoded(decoder, block)
        if decoder.max_allowed_table_size == 0:
            self._decoder = None
        return _head_of(fields)

    def read_trailer(self, block: bytes) -> bool:
        """Return whether it is well-formed; what it says does not matter."""
        fields = _decoded(self._decoder or _tableless(), block)
        return all(_is_ordinary(name, value) for name, value in fields)


def _decoded(decoder: hpack.Decoder, block: bytes) -> list[tuple[bytes, bytes]]:
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except hpack.OversizedHeaderListError as error:
        raise HeadTooLargeError from error
    except hpack.HPACKError as error:
        raise UnreadableHeadError(str(error)) from error


def _tableless() -> hpack.Decoder:
    decoder = hpack.Decoder(MAX_HEAD_BYTES)
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    return decoder


def _read_alone(block: bytes) -> Head | None:
    return _head_of(_decoded(_tableless(), block))


@lru_cache(_RECALLED)
def _recalled(block: bytes) -> Head | None:
    written = _cut(block)
    if written is None:
        return _read_alone(block)
    return _head_of([_field(text) for text in written])


@lru_cache(_RECALLED)
def _field(written: bytes) -> tuple[bytes, bytes]:
    ((name, value),) = _decoded(_tableless(), written)
    return name, value


def _cut(block: bytes) -> list[bytes] | None:
    """The fields of a block as they are written, for a decoder without a table (RFC 7541, section 6).

    None for anything rare: numbers of more than two bytes, a change of the table's size, an end too soon.
    """
    written: list[bytes] = []
    begin, size = 0, len(block)
    try:
        while begin < size:
            first, end = block[begin], begin + 1
            if not first & _INDEXED:
                if first & (_WITH_TABLE | _RESIZE) == _RESIZE:
                    return None
                most = _NAMES_WITH_TABLE if first & _WITH_TABLE else _NAMES
                if first & most == most:
                    if block[end] & _GOES_ON:
                        return None
                    end += 1
                for _ in range(1 if first & most else 2):
                    length = block[end] & _LENGTH_MASK
                    if length == _LENGTH_MASK:
                        return None
                    end += 1 + length
            elif first & _LENGTH_MASK == _LENGTH_MASK:
                return None
            written.append(block[begin:end])
            begin = end
    except IndexError:
        return None
    return written if begin == size else None


def _head_of(fields: Iterable[tuple[bytes, bytes]]) -> Head | None:
    pseudo: dict[bytes, bytes] = {}
    lengths: set[bytes] = set()
    ordinary = False
    for name, value in fields:
        if name in _PSEUDO and not ordinary and name not in pseudo and _VALUE.fullmatch(value):
            pseudo[name] = value
        elif _is_ordinary(name, value):
            ordinary = True
            if name == b"content-length":
                lengths.add(value)
        else:
            return None
    if not all(pseudo.get(name) for name in _REQUIRED) or len(lengths) > 1:
        return None
    if not all(_LENGTH.fullmatch(length) for length in lengths):
        return None
    return Head(pseudo[b":method"], pseudo[b":path"], int(lengths.pop()) if lengths else -1)


def _is_ordinary(name: bytes, value: bytes) -> bool:
    if name == b"te":
        return value == b"trailers"
    return name not in _OF_A_CONNECTION and bool(_NAME.fullmatch(name) and _VALUE.fullmatch(value))
