"""The simulated scheduler's side of the extender protocol."""

import orjson
import pytest

from gpuloom.model.node import PodRef
from gpuloom.placement.constraints.objects import NodeUse
from gpuloom.sim.scheduler.wire import (
    ExtenderError,
    bind_answer,
    bind_request,
    filter_answer,
    filter_request,
    prioritize_answer,
)
from tests.unit.sim.builders import a_pod

EMPTY = NodeUse({}, 0)
Json = dict[str, object]


def test_requests_are_written_as_kube_scheduler_writes_them() -> None:
    pod = a_pod("p")

    assert orjson.loads(filter_request(pod, ["a", "b"])) == {
        "Pod": pod,
        "Nodes": None,
        "NodeNames": ["a", "b"],
    }
    assert orjson.loads(bind_request(PodRef("ns", "p", "u"), "n")) == {
        "PodName": "p",
        "PodNamespace": "ns",
        "PodUID": "u",
        "Node": "n",
    }


def test_answers_are_read_without_regard_to_case() -> None:
    answer = filter_answer(
        b'{"nodeNames":["a"],"FAILEDNODES":{"b":"full"},"failedAndUnresolvableNodes":{"c":"closed"},"error":""}',
        ["a", "b", "c"],
    )

    assert answer.nodes == ("a",)
    assert answer.refused == {"b": "full", "c": "closed"}


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"node_names":["a"]}'])
def test_an_empty_or_misspelt_answer_means_no_nodes(body: bytes) -> None:
    assert filter_answer(body, ["a"]).nodes == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"NodeNames":["z"]}',
        b'{"Error":"not synced"}',
        b'{"NodeNames":[1]}',
        b'{"FailedNodes":[]}',
    ],
)
def test_a_filter_answer_that_makes_no_sense_is_an_error(body: bytes) -> None:
    with pytest.raises(ExtenderError):
        filter_answer(body, ["a"])


def test_one_float_loses_all_priorities() -> None:
    good = prioritize_answer(b'[{"Host":"a","Score":10},{"host":"b"}]')

    assert good == {"a": 10, "b": 0}
    with pytest.raises(ExtenderError):
        prioritize_answer(b'[{"Host":"a","Score":10},{"Host":"b","Score":1.5}]')


def test_a_bind_answer_with_error_is_an_error() -> None:
    bind_answer(b'{"Error":""}')
    with pytest.raises(ExtenderError, match="bound elsewhere"):
        bind_answer(b'{"Error":"bound elsewhere"}')
