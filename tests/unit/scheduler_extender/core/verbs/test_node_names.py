"""The names of a call: whoever reads them as text sees what whoever reads them as JSON sees."""

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from services.scheduler_extender.core.verbs.node_names import OfferedNames, listed_text
from services.scheduler_extender.core.verbs.wire import NodesCall, parse_nodes_call

NAMES = st.text(alphabet="ab0-.", max_size=4)
PARTS = [b'"NodeNames":[', b'"a"', b",", b"]", b"}", b"{", b'"Pod":{}', b'\\"', b'"']
ODD_NAMES = st.text(alphabet='aB"\\/, ]}é\n', max_size=4)


def read(body: bytes) -> tuple[object, tuple[str, ...]] | None:
    try:
        call: NodesCall = parse_nodes_call(body)
    except InvalidRequestError:
        return None
    return call.pod, call.node_names.all()


def by_json(body: bytes) -> tuple[object, tuple[str, ...]] | None:
    """The protocol as it is meant, read without haste."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    fields = {key.lower(): value for key, value in parsed.items()} if isinstance(parsed, dict) else {}
    pod, names = fields.get("pod"), fields.get("nodenames")
    if not isinstance(pod, dict) or not isinstance(names, list | None):
        return None
    if not all(isinstance(name, str) for name in names or ()):
        return None
    return pod, tuple(dict.fromkeys(names or ()))


@given(st.lists(NAMES, max_size=6), NAMES)
def test_names_are_found_in_the_text_as_in_the_list(names: list[str], other: str) -> None:
    body = orjson.dumps({"Pod": {}, "Nodes": None, "NodeNames": names})

    offered = parse_nodes_call(body).node_names

    assert len(offered) == len(names)
    assert [name in offered for name in (*names, other)] == [True] * len(names) + [other in names]
    assert offered.all() == tuple(dict.fromkeys(names))


@given(st.lists(st.one_of(NAMES, ODD_NAMES), max_size=4), st.one_of(NAMES, ODD_NAMES))
def test_any_names_are_read_as_json_reads_them(names: list[str], other: str) -> None:
    body = orjson.dumps({"Pod": {other: other}, "NodeNames": names})

    offered = parse_nodes_call(body).node_names

    assert offered.all() == tuple(dict.fromkeys(names))
    assert (other in offered) == (other in names)


@given(st.text(alphabet='"a,-', max_size=12))
@example('"a"b,"c"')
@example('b"a","c"')
@example('"a","c"b')
@example("1")
@example('"a",,"b"')
def test_only_a_list_of_names_is_taken_for_one(text: str) -> None:
    try:
        names = orjson.loads(f"[{text}]")
    except orjson.JSONDecodeError:
        names = [0]

    assert listed_text(text.encode()) == all(isinstance(name, str) and "," not in name for name in names)


@pytest.mark.parametrize(
    "body",
    [
        b'{"Pod":{},"NodeNames":["a"]}',
        b'{"Pod":{},"NodeNames":[]}',
        b'{"Pod":{},"NodeNames":["a","a"]}',
        b'{"Pod":{},"NodeNames":["a"]} ',
        b'{"Pod":{},"NodeNames":[ "a" ]}',
        b'{"Pod":{},"NodeNames":["\\u0061"]}',
        b'{"NodeNames":["a"],"Pod":{}}',
        b'{"NodeNames":["a"],"Pod":{},"NodeNames":["b"]}',
        b'{"nodenames":["a"],"Pod":{},"NodeNames":["b"]}',
        b'{"Pod":{},"NodeNames":["b"],"nodenames":["a"]}',
        b'{"Pod":{},"NodeNames":["b"],"nodenames":null}',
        b'{"Pod":{"NodeNames":["a"]}}',
        b'{"Pod":{"NodeNames":["a"]}',
        b'{"Pod":{},"x\\"NodeNames":["a"]}',
        b'{"Pod":{},"x":"\\"NodeNames":["a"]}',
        b'{"Pod":{},"x":[{"NodeNames":["a"]}',
        b'{"Pod":{},"x":["NodeNames":["a"]}',
        b'{"Pod":{},"NodeNames":["a"]]}',
        b'{"Pod":{},,"NodeNames":["a"]}',
        b'{"Pod":{} "NodeNames":["a"]}',
        b'{"Pod":{},"NodeNames":["a"b]}',
        b'{"Pod":{},"NodeNames":[1]}',
        b'{"Pod":{},"NodeNames":["a",null]}',
        b'["NodeNames":["a"]}',
        b'"NodeNames":["a"]}',
    ],
)
def test_what_only_looks_like_the_names_is_not_taken_for_them(body: bytes) -> None:
    assert read(body) == by_json(body)


@given(
    st.lists(st.sampled_from([b'"NodeNames":[', b'"a"', b",", b"]", b"}", b"{", b'"Pod":{}', b'\\"', b'"']))
)
def test_however_a_body_is_put_together_it_is_read_as_json_is(parts: list[bytes]) -> None:
    body = b'{"Pod":{},' + b"".join(parts)

    assert read(body) == by_json(body)


def test_names_that_came_as_a_list_are_found_too() -> None:
    offered = OfferedNames(["a", "b", "a"])

    assert ("a" in offered, "c" in offered, 3 in offered) == (True, False, False)
    assert (len(offered), offered.all()) == (3, ("a", "b"))
