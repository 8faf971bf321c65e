"""Frames and messages: whatever way the bytes come, and whatever bytes come."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.delivery.core import ttrpc
from services.node_agent.delivery.core.mux import (
    MAX_FRAME_BYTES,
    Frame,
    FrameDecoder,
    WireError,
    encode_frame,
)
from services.node_agent.delivery.core.ttrpc import (
    MAX_MESSAGE_BYTES,
    Kind,
    Message,
    MessageDecoder,
    encode_message,
)

numbers = st.integers(0, 2**32 - 1)
frames = st.lists(st.builds(Frame, numbers, st.binary(max_size=40)), max_size=8)
messages = st.lists(st.builds(Message, numbers, st.sampled_from(Kind), st.binary(max_size=40)), max_size=8)


def pieces(content: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(content) + 1) for cut in cuts})
    return [content[a:b] for a, b in zip([0, *places], [*places, len(content)], strict=True)]


@given(frames, st.lists(st.integers(0, 10_000), max_size=10))
def test_frames_survive_any_cut(sent: list[Frame], cuts: list[int]) -> None:
    content = b"".join(encode_frame(frame.connection, frame.content) for frame in sent)
    decoder = FrameDecoder()

    assert [frame for piece in pieces(content, cuts) for frame in decoder.feed(piece)] == sent


@given(messages, st.lists(st.integers(0, 10_000), max_size=10))
def test_messages_survive_any_cut(sent: list[Message], cuts: list[int]) -> None:
    content = b"".join(encode_message(message) for message in sent)
    decoder = MessageDecoder()

    assert [message for piece in pieces(content, cuts) for message in decoder.feed(piece)] == sent


@given(st.lists(st.binary(max_size=60), max_size=12))
def test_noise_is_an_error_or_nothing_and_is_never_hoarded(noise: list[bytes]) -> None:
    frame_decoder, message_decoder = FrameDecoder(), MessageDecoder()
    for piece in noise:
        try:
            frame_decoder.feed(piece)
            for message in message_decoder.feed(piece):
                ttrpc.read_call(message)
                ttrpc.read_answer(message)
        except WireError:
            break

    assert len(frame_decoder._buffer) + len(message_decoder._buffer) <= 2 * sum(map(len, noise))


def test_a_frame_beyond_the_bound_is_refused_at_its_header() -> None:
    with pytest.raises(WireError, match="beyond the bound"):
        FrameDecoder().feed(struct.pack(">II", 1, MAX_FRAME_BYTES + 1))


def test_a_message_beyond_the_bound_is_refused_at_its_header() -> None:
    with pytest.raises(WireError, match="beyond the bound"):
        MessageDecoder().feed(struct.pack(">IIBB", MAX_MESSAGE_BYTES + 1, 1, 1, 0))


def test_a_message_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(WireError, match="type 9"):
        MessageDecoder().feed(struct.pack(">IIBB", 0, 1, 9, 0))


def test_we_never_send_what_the_other_side_must_refuse() -> None:
    with pytest.raises(WireError, match="do not fit"):
        encode_message(Message(1, Kind.REQUEST, bytes(MAX_MESSAGE_BYTES + 1)))
    with pytest.raises(WireError, match="do not fit"):
        encode_frame(1, bytes(MAX_FRAME_BYTES + 1))


def test_a_failure_carries_its_code_and_reason() -> None:
    response = ttrpc.read_answer(ttrpc.failure(3, ttrpc.Code.FAILED_PRECONDITION, "no such GPU"))

    assert (response.status.code, response.status.message) == (9, "no such GPU")
