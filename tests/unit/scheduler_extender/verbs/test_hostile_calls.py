"""The verbs as wholes, called with what no scheduler would send.

Whatever comes, a verb gives a well-formed answer of its kind or raises InvalidRequestError. Nothing changes,
unless the call is a bind that names a pod and a node; then one Binding for just these may be sent.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, assume, example, given, reject, settings
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.placement.devices import NodeView
from gpuloom.placement.score import MAX_EXTENDER_SCORE, ScoreWeights
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.core.verbs.wire import MAX_NODES
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import VERBS, Verbs
from tests.unit.scheduler_extender.builders import (
    HandClock,
    JsonObject,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    an_allocation,
    some_facts,
)
from tests.unit.scheduler_extender.builders import given as a_card
from tests.unit.scheduler_extender.kubernetes import ScriptedApi

NODES = ("n1", "n2")
POD = a_ref("pod")
RESIDENT = a_ref("resident")
GIANT_BYTES = 20_000_000
SHORTLIST = 8

FUZZED = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])


class World:
    """An extender that knows two nodes of two cards, somebody on one card, and a pod that waits."""

    def __init__(self, pod: JsonObject | None = None) -> None:
        clock = HandClock()
        self.api = ScriptedApi(a_pod(POD) if pod is None else pod)
        self.state = ClusterState(Ledger(30.0), lambda: False, clock)
        evaluator = Evaluator(ScoreWeights())
        self.state.views.keep(evaluator.fleet)
        context = BindContext(self.state.ledger, self.state.views, DecisionLog(clock), clock)
        bindings = Bindings(context, self.api, self.api, timeout_s=4.0)
        self._verbs = Verbs(context, bindings, Preferences(SHORTLIST, evaluator, first_shortlist=SHORTLIST))
        for name in NODES:
            self.state.observe_node(Change(None, a_node(name)))
            cards = (a_gpu(f"GPU-{name}-0", 0), a_gpu(f"GPU-{name}-1", 1))
            self.state.observe_facts(f"uid-{name}", some_facts(name, *cards))
        held = an_allocation(RESIDENT, a_card("GPU-n1-0"), node_uid="uid-n1")
        resident = a_pod(RESIDENT, node="n1", phase="Running", allocation=held)
        self.state.observe_pod(Change(None, resident))

    def answer(self, verb: str, body: bytes) -> Any:
        """None for an invalid request. Nothing here waits, so one step is all it takes."""
        try:
            self._verbs.answer(verb, body).send(None)
        except StopIteration as done:
            return orjson.loads(done.value)
        except InvalidRequestError:
            return None
        raise AssertionError("the verb waits for something")

    def snapshot(self) -> tuple[list[Any], list[NodeView | None]]:
        """Who owns what, and what filter and bind see of the nodes."""
        return list(self.state.ledger.entries()), [self.state.views.view(name) for name in NODES]


def a_call(verb: str) -> JsonObject:
    if verb == "bind":
        return {"PodName": POD.name, "PodNamespace": POD.namespace, "PodUID": POD.uid, "Node": "n1"}
    pod = a_pod(POD, annotations={"gpuloom.dev/topology": "nvlink"})
    pod["spec"] |= {"initContainers": [], "overhead": {}, "affinity": {"nodeAffinity": {}}}
    pod["metadata"]["ownerReferences"] = [
        {"kind": "Job", "name": "job", "uid": "uid-job", "controller": True}
    ]
    if verb == "preempt":
        return {"Pod": pod, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": RESIDENT.uid}]}}}
    return {"Pod": pod, "Nodes": None, "NodeNames": [*NODES, "n9"]}


def a_call_with_nodes() -> JsonObject:
    return a_call("filter") | {"Nodes": {"items": [a_node(name) for name in NODES]}, "NodeNames": None}


# What JSON text can hold and Python's objects can't, or not for long.
RAW = {
    "raw-list-200": b"[" * 200 + b"]" * 200,
    "raw-list-900": b"[" * 900 + b"]" * 900,
    "raw-list-5000": b"[" * 5000 + b"]" * 5000,
    "raw-object-300": b'{"spec":' * 300 + b"{}" + b"}" * 300,
    "raw-object-1000": b'{"metadata":' * 1000 + b"1" + b"}" * 1000,
    "raw-object-5000": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "raw-many-digits": b"9" * 5000,
    "raw-small-exponent": b"1e-999999",
    "raw-large-exponent": b"1e999999",
    "raw-surrogate": rb'"\ud800"',
    "raw-swapped-surrogates": rb'"\udc00\ud800"',
    "raw-pair": rb'"\ud83d\ude00"',
    "raw-nul": rb'"a\u0000b"',
    "raw-not-utf8": b'"\xff\xfe"',
    "raw-repeated-key": b'{"name":"a","name":1,"NAME":null}',
    "raw-nan": b"NaN",
}
RAW_KEYS = ("raw-surrogate", "raw-nul", "raw-pair", "raw-not-utf8")
NUMBERS = (0, -0.0, -1, 1.5, -(2**31), 2**63, 2**64, -(2**63) - 1, 10**40, 1e308, -1e-300, True, False)
TEXTS = (
    *("", " ", "n1", "n2", "n9", "uid-pod", "uid-resident", "null", "-1", "1e99", "0x10", "9" * 400),
    *("1.5", "1000", "500m", "1Ei", "x" * 100_000, "\u0130", "\x00", "../../etc", "GPU-n1-0", "\u202e"),
)
KEYS = ("metadata", "name", "uid", "spec", "containers", "items", "Pod", "POD", "nodenames", "NodeNames", "")
SCALARS = (
    st.none()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(TEXTS)
    | st.sampled_from(tuple(RAW))
    | st.text(max_size=10)
)
HOSTILE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*KEYS, *RAW_KEYS)), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed, the whole call included."""
    yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield from places(entry, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, call: JsonObject) -> bytes:
    """The call with one to three of its parts replaced, left out, renamed or doubled."""
    changed: Any = copy.deepcopy(call)
    for _ in range(draw(st.integers(1, 3))):
        changed = _changed(draw, changed, draw(st.sampled_from(list(places(changed)))))
    return encode(changed)


def _changed(draw: st.DrawFn, call: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        # Seldom: whatever is not an object at all is refused at once.
        return draw(HOSTILE) if draw(st.integers(0, 9)) == 0 else call
    parent = call
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    match draw(st.sampled_from(("replace", "replace", "leave out", "rename", "double", "add"))):
        case "replace":
            parent[last] = draw(HOSTILE)
        case "leave out":
            del parent[last]
        case "rename" if isinstance(parent, dict):
            parent[draw(st.sampled_from((last.upper(), last.lower(), last.swapcase(), "raw-surrogate")))] = (
                parent.pop(last)
            )
        case "double" if isinstance(parent, list):
            parent += [parent[last]] * draw(st.sampled_from((1, 3, 1500)))
        case _ if isinstance(parent, dict):
            parent[draw(st.sampled_from(KEYS))] = draw(HOSTILE)
        case _:
            parent.insert(last, draw(HOSTILE))
    return call


def as_object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def encode(value: Any) -> bytes:
    text = json.dumps(value).encode()
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"'.encode(), raw)
    return text


def check(verb: str, body: bytes, world: World | None = None) -> Any:
    """Feed it and judge what came of it; the answer, None for an invalid request."""
    world = world or World()
    before = world.snapshot()

    answer = world.answer(verb, body)

    if answer is not None:
        WELL_FORMED[verb](answer, body)
    if verb == "bind" and world.api.bindings:
        (binding,) = world.api.bindings
        fields = {key.lower(): value for key, value in orjson.loads(body).items()}
        assert (binding.uid, binding.node) == (fields["poduid"], fields["node"])
        assert (binding.uid, binding.namespace, binding.pod) == (POD.uid, POD.namespace, POD.name)
        assert answer == {"Error": ""}
    else:
        assert world.api.bindings == []
        assert world.snapshot() == before
    return answer


def _well_formed_filter(answer: Any, body: bytes) -> None:
    asked = {key.lower(): value for key, value in orjson.loads(body).items()}
    assert answer.keys() == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    names = asked.get("nodenames")
    if names is not None:
        assert answer["Nodes"] is None
        kept = answer["NodeNames"]
    elif isinstance(asked.get("nodes"), dict):
        names = [node["metadata"]["name"] for node in asked["nodes"].get("items") or []]
        assert answer["NodeNames"] is None
        kept = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
    else:
        names, kept = [], answer["NodeNames"]
    refused = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
    assert set(kept) | set(refused) <= set(names)
    assert not set(kept) & set(refused)
    # Beyond the shortlist a node that fits is neither kept nor refused.
    assert len(names) > SHORTLIST or set(kept) | set(refused) == set(names)
    assert all(isinstance(reason, str) and reason for reason in refused.values())
    assert answer["Error"] == ""


def _well_formed_scores(answer: Any, body: bytes) -> None:
    for entry in answer:
        assert entry.keys() == {"Host", "Score"}
        assert type(entry["Host"]) is str
        assert type(entry["Score"]) is int
        assert 0 <= entry["Score"] <= MAX_EXTENDER_SCORE


def _well_formed_bind(answer: Any, body: bytes) -> None:
    assert answer.keys() == {"Error"}
    assert type(answer["Error"]) is str


def _well_formed_preempt(answer: Any, body: bytes) -> None:
    assert answer == {"NodeNameToMetaVictims": {}}


WELL_FORMED = {
    "filter": _well_formed_filter,
    "prioritize": _well_formed_scores,
    "bind": _well_formed_bind,
    "preempt": _well_formed_preempt,
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_calls_that_are_mutated_here_are_answered_when_they_are_whole(verb: str) -> None:
    answer = check(verb, encode(a_call(verb)))

    assert answer is not None
    if verb == "filter":
        assert answer["NodeNames"]


@pytest.mark.parametrize("verb", VERBS)
@FUZZED
@given(data=st.data())
def test_a_call_changed_anywhere_is_answered_well_or_refused(verb: str, data: st.DataObject) -> None:
    check(verb, data.draw(mutated(a_call(verb))))


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@FUZZED
@given(data=st.data())
def test_a_call_with_whole_nodes_changed_anywhere_is_answered_well_or_refused(
    verb: str, data: st.DataObject
) -> None:
    check(verb, data.draw(mutated(a_call_with_nodes())))


@pytest.mark.parametrize("verb", VERBS)
@FUZZED
@given(body=st.binary(max_size=200) | HOSTILE.map(encode))
@example(body=b"")
@example(body=b"\xef\xbb\xbf{}")
def test_bytes_and_json_of_any_kind_are_answered_well_or_refused(verb: str, body: bytes) -> None:
    check(verb, body)


@FUZZED
@given(data=st.data())
def test_a_bind_of_a_pod_that_is_shown_in_any_shape_is_answered(data: st.DataObject) -> None:
    body = data.draw(mutated(a_pod(POD)))
    try:
        pod = orjson.loads(body)
    except orjson.JSONDecodeError:
        reject()
    assume(isinstance(pod, dict))
    world = World()
    # As the API server answers a read of a pod that no informer has shown.
    world.api.shown.clear()
    world.api.present[POD.name] = pod

    answer = world.answer("bind", encode(a_call("bind")))

    assert type(answer["Error"]) is str
    assert all(binding.uid == POD.uid for binding in world.api.bindings)


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("verb", VERBS)
def test_whatever_stands_in_any_one_place_is_answered_well_or_refused(verb: str, raw: str) -> None:
    for call in (a_call(verb), *([a_call_with_nodes()] if verb in ("filter", "prioritize") else [])):
        for path in places(call):
            if path:
                changed: Any = copy.deepcopy(call)
                parent = changed
                for key in path[:-1]:
                    parent = parent[key]
                parent[path[-1]] = raw
                check(verb, encode(changed))


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_one_node_more_than_allowed_is_refused(verb: str) -> None:
    names = [f"node-{number}" for number in range(MAX_NODES)]

    most = check(verb, encode(a_call(verb) | {"NodeNames": names}))
    beyond = check(verb, encode(a_call(verb) | {"NodeNames": [*names, "n1"]}))

    assert most is not None
    assert beyond is None


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_node_that_is_named_often_has_one_verdict(verb: str) -> None:
    answer = check(verb, encode(a_call(verb) | {"NodeNames": ["n2", "n1", "n2", "n9", "n2"] * 20}))

    if verb == "filter":
        assert set(answer["NodeNames"]) <= set(NODES)
        assert set(answer["FailedAndUnresolvableNodes"]) == {"n9"}
    else:
        assert len({(entry["Host"], entry["Score"]) for entry in answer}) == len({*NODES, "n9"})


def giant_bodies(verb: str) -> Iterator[bytes]:
    call, giant = a_call(verb), "x" * GIANT_BYTES
    yield b"[" * GIANT_BYTES
    yield b"[" + b"0," * (GIANT_BYTES // 2) + b"0]"
    for field in (*call, "more"):
        yield orjson.dumps(call | {field: giant})
    if "Pod" in call:
        annotated = copy.deepcopy(call["Pod"])
        annotated["metadata"]["annotations"] = {"gpuloom.dev/gpu-model": giant}
        yield orjson.dumps(call | {"Pod": annotated})
        crowded = copy.deepcopy(call["Pod"])
        crowded["spec"]["containers"] *= 150_000
        yield orjson.dumps(call | {"Pod": crowded})
    if "NodeNames" in call:
        yield orjson.dumps(call | {"NodeNames": [f"{number:01000}" for number in range(MAX_NODES)]})


@pytest.mark.parametrize("verb", VERBS)
def test_giant_calls_are_answered_well_or_refused(verb: str) -> None:
    for body in giant_bodies(verb):
        check(verb, body)
