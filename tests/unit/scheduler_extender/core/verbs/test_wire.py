"""kube-scheduler's JSON, also when it is none."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs import wire
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.core.verbs.wire import BindCall, FilterAnswer
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import VERBS, Verbs
from tests.effort import examples
from tests.unit.scheduler_extender.builders import HandClock, a_node, a_pod
from tests.unit.scheduler_extender.kubernetes import ScriptedApi

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
OUTER_KEYS = ("Pod", "pod", "Nodes", "NodeNames", "nodenames", "PodName", "PodNamespace", "PodUID", "Node")
POD_KEYS = ("metadata", "name", "uid", "annotations", "spec", "containers", "initContainers", "status")
INNER_KEYS = ("items", "resources", "limits", "nvidia.com/gpu", "gpuloom.dev/gpu-milli", "affinity")
KEYS = st.sampled_from((*OUTER_KEYS, *POD_KEYS, *INNER_KEYS))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
NEARLY_A_POD = st.builds(
    lambda metadata, spec, status: {
        "metadata": {"name": "p", "uid": "u", **metadata},
        "spec": spec,
        "status": status,
    },
    st.dictionaries(KEYS, JSON, max_size=2),
    JSON,
    JSON,
)


def body(**fields: Any) -> bytes:
    return orjson.dumps(fields)


def some_verbs() -> Verbs:
    clock = HandClock()
    state = ClusterState(Ledger(30.0), lambda: False, clock)
    context = BindContext(state.ledger, state.views, DecisionLog(clock), clock)
    api = ScriptedApi()
    return Verbs(
        context, Bindings(context, api, api, timeout_s=4.0), Preferences(8, Evaluator(ScoreWeights()))
    )


def run(verb: str, request: bytes) -> bytes:
    """Nothing here waits, so one step is all it takes."""
    try:
        some_verbs().answer(verb, request).send(None)
    except StopIteration as done:
        answer: bytes = done.value
        return answer
    raise AssertionError("the verb waits for something")


def test_node_names_are_read_without_regard_to_case() -> None:
    for key in ("NodeNames", "nodenames", "nodeNames"):
        call = wire.parse_nodes_call(orjson.dumps({"POD": a_pod(), key: ["a", "b"], "Nodes": None}))

        assert call.node_names.all() == ("a", "b")
        assert call.nodes is None


def test_whole_nodes_are_answered_with_those_of_them_that_are_kept() -> None:
    nodes = [a_node("a"), a_node("b")]
    call = wire.parse_nodes_call(body(Pod=a_pod(), Nodes={"items": nodes}, NodeNames=None))

    answer = orjson.loads(wire.encode_filter(call, FilterAnswer(("b",), {"a": "full"}, {})))

    assert call.node_names.all() == ("a", "b")
    assert answer["Nodes"] == {"metadata": {}, "items": [nodes[1]]}
    assert answer["NodeNames"] is None
    assert answer["FailedNodes"] == {"a": "full"}


def test_names_are_answered_with_names() -> None:
    call = wire.parse_nodes_call(body(Pod=a_pod(), NodeNames=["a", "b"]))

    answer = orjson.loads(wire.encode_filter(call, FilterAnswer(("b",), {}, {"a": "stale"})))

    assert (answer["Nodes"], answer["NodeNames"]) == (None, ["b"])
    assert answer["FailedAndUnresolvableNodes"] == {"a": "stale"}
    assert answer["Error"] == ""


def test_a_call_without_any_nodes_has_none() -> None:
    assert wire.parse_nodes_call(body(Pod=a_pod())).node_names.all() == ()


def test_calls_that_differ_only_by_their_names_have_the_same_pod_and_their_own_names() -> None:
    calls = [
        wire.parse_nodes_call(body(Pod=a_pod(), NodeNames=names)) for names in (["a", "b"], ["b"], ["a"])
    ]

    assert [call.pod for call in calls] == [a_pod()] * 3
    assert [call.node_names.all() for call in calls] == [("a", "b"), ("b",), ("a",)]


def test_a_pod_that_changed_is_read_anew() -> None:
    pods = [a_pod(version=version) for version in (1, 2, 1)]

    assert [wire.parse_nodes_call(body(Pod=pod, NodeNames=["a"])).pod for pod in pods] == pods


def test_a_bind_call_is_read() -> None:
    call = wire.parse_bind_call(body(PodName="p", PodNamespace="ns", PodUID="u", Node="n"))

    assert call == BindCall("ns", "p", "u", "n")


@pytest.mark.parametrize(
    "request_body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"Pod":' * 5000,
        body(NodeNames=["a"]),
        body(Pod=[], NodeNames=["a"]),
        body(Pod=a_pod(), NodeNames=[1]),
        body(Pod=a_pod(), NodeNames="a"),
        body(Pod=a_pod(), Nodes={"items": ["a"]}),
        body(Pod=a_pod(), Nodes={"items": [{"metadata": {}}]}),
        body(Pod=a_pod(), NodeNames=["a"] * (wire.MAX_NODES + 1)),
    ],
)
def test_a_malformed_nodes_call_is_an_invalid_request(request_body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        wire.parse_nodes_call(request_body)


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [None, "", 3])
def test_a_bind_call_without_a_part_is_an_invalid_request(missing: str, value: object) -> None:
    fields: dict[str, object] = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"}

    with pytest.raises(InvalidRequestError, match=missing):
        wire.parse_bind_call(orjson.dumps({**fields, missing: value}))


@pytest.mark.parametrize("verb", VERBS)
@settings(max_examples=examples(60))
@given(request_body=st.one_of(st.binary(max_size=40), JSON.map(orjson.dumps)))
def test_hostile_bodies_raise_nothing_but_invalid_requests(verb: str, request_body: bytes) -> None:
    try:
        run(verb, request_body)
    except InvalidRequestError:
        return


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
@settings(max_examples=examples(120))
@given(pod=NEARLY_A_POD, names=st.lists(st.text(max_size=5), max_size=3))
def test_hostile_pods_get_an_answer_about_the_names_asked(verb: str, pod: Any, names: list[str]) -> None:
    try:
        answer = orjson.loads(run(verb, body(Pod=pod, NodeNames=names)))
    except InvalidRequestError:
        return

    match verb:
        case "filter":
            told = {*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]}
            assert told == set(names)
        case "prioritize":
            assert [entry["Host"] for entry in answer] == list(dict.fromkeys(names))
        case _:
            assert answer == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize(
    "pod", [None, "uid", 1, {"metadata": "uid"}, {"metadata": {"uid": 1}}, {"UID": {"a": 1}}]
)
def test_a_victim_that_is_none_is_left_out(pod: Any) -> None:
    known = [{"UID": "a"}, {"uid": "b"}, {"metadata": {"uid": "c"}}]
    call = body(NodeNameToVictims={"n1": {"Pods": [*known, pod]}})

    assert wire.victims_offered(call, "n1") == {"a", "b", "c"}
