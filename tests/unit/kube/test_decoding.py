"""One object that is nested deeper than parsers go hides no other."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.kube.client import parse_watch_line
from gpuloom.kube.decoding import MAX_DEPTH, decoded
from gpuloom.kube.errors import Call

JSON = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), st.text(alphabet='{}[]"\\\\a', max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(alphabet='{["\\\\b', max_size=3), inner, max_size=3),
    ),
    max_leaves=10,
)


def deep(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


def depth_of(value: Any) -> int:
    levels = 0
    while isinstance(value, dict | list) and value:
        value = value["a"] if isinstance(value, dict) else value[0]
        levels += 1
    return levels


@given(JSON, JSON, st.sampled_from([(b'{"a":', b"}"), (b"[", b"]")]))
def test_what_stands_beside_it_is_read_as_it_is(before: Any, after: Any, kind: tuple[bytes, bytes]) -> None:
    text = b"[%s,%s,%s]" % (orjson.dumps(before), deep(3000, *kind), orjson.dumps(after))

    first, nested, last = decoded(text)

    assert (first, last) == (before, after)
    assert depth_of(nested) == MAX_DEPTH - 1


def test_what_the_parser_takes_is_left_whole() -> None:
    assert depth_of(decoded(deep(1000))) == 1000


@pytest.mark.parametrize("text", [b"", b"{", deep(3000)[:-1], b"[" * 3000])
def test_what_is_no_json_is_an_error_however_deep(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        decoded(text)


def test_a_watch_goes_on_past_it() -> None:
    line = b'{"type":"ADDED","object":{"metadata":{"name":"x"},"spec":%s}}' % deep(2000)

    event = parse_watch_line(line, Call("watch", "gpuworkloads"))

    assert event.object["metadata"] == {"name": "x"}
