"""Heads that are read field by field: always what a decoder makes of the whole block."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler_extender.http2_heads import Head, Heads, UnreadableHeadError

LONGEST_STATIC_FIELD = b"\x90"
"""accept-encoding: gzip, deflate"""

names = st.sampled_from(
    [b":method", b":scheme", b":path", b":authority", b"content-length", b"user-agent", b"te", b"x-a", b"X"]
)
values = st.one_of(
    st.sampled_from([b"POST", b"https", b"/filter", b"13562", b"trailers", b""]), st.binary(max_size=140)
)
fields = st.lists(st.tuples(names, values), max_size=9)
a_head = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":path", b"/filter"),
    (b"content-type", b"application/json"),
]


def tableless_encoder() -> hpack.Encoder:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    encoder.encode([])
    return encoder


def settled_heads() -> Heads:
    """Of a client that has seen that it may keep no table."""
    heads = Heads()
    heads.forbid_table()
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    heads.read(encoder.encode(a_head))
    return heads


def read_whole(block: bytes) -> Head | str | None:
    """By a new connection, whose first block goes through a decoder at once."""
    heads = Heads()
    heads.forbid_table()
    try:
        # A block must begin with the new size of the table while the client's old one was larger.
        return heads.read(b"\x20" + block)
    except UnreadableHeadError:
        return "unreadable"


def read_by_field(block: bytes) -> Head | str | None:
    try:
        return settled_heads().read(block)
    except UnreadableHeadError:
        return "unreadable"


@given(fields, st.booleans())
def test_a_block_read_by_field_is_what_it_is_as_a_whole(
    listed: list[tuple[bytes, bytes]], huffman: bool
) -> None:
    block = tableless_encoder().encode(listed, huffman=huffman)
    assert read_by_field(block) == read_whole(block)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_alike_or_refused_alike(block: bytes) -> None:
    assert read_by_field(block) == read_whole(block)


@given(st.integers(0, 99_999))
def test_heads_that_differ_in_their_length_alone_are_told_apart(length: int) -> None:
    block = tableless_encoder().encode([*a_head, (b"content-length", b"%d" % length)])
    assert read_by_field(block) == Head(b"POST", b"/filter", length)


def test_the_largest_head_that_is_recalled_is_not_too_large() -> None:
    assert read_by_field(LONGEST_STATIC_FIELD * 512) == read_whole(LONGEST_STATIC_FIELD * 511)


RARE = {
    "index 0": b"\x80",
    "beyond the table": b"\xbe",
    "long index": b"\xff\x00",
    "cut number": b"\x0f",
    "long number": b"\x0f\x80\x01",
    "long name": b"\x00\x7f\x00",
    "no value": b"\x00\x03abc",
    "short value": b"\x04\x05abc",
}


@pytest.mark.parametrize("block", RARE.values(), ids=RARE)
def test_a_block_that_is_cut_off_or_rare_is_left_to_the_decoder(block: bytes) -> None:
    assert read_by_field(block) == read_whole(block)
