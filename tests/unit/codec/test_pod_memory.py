"""A request that is remembered is always that of the very content it is asked for."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec import pod as codec
from gpuloom.codec.environment import VARIABLE
from gpuloom.codec.pod import MAX_KNOWN_BYTES, MAX_KNOWN_REQUESTS, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.names import ANNOTATION_MIG_PROFILE, ANNOTATION_TOPOLOGY, ANNOTATION_VISIBLE_DEVICES

PARTS: dict[str, list[Any]] = {
    "amount": ["1", "2", 1, 2, "nonsense", None],
    "cpu": ["1", "500m", None],
    "annotation": ["nvlink", "numa", "", None],
    "runtime_class": ["nvidia", None],
    "name": ["main", "other"],
    "debugging": [None, "void", "all"],
}


def a_pod(
    amount: Any, cpu: Any, annotation: Any, runtime_class: Any, name: str, debugging: Any = None
) -> dict[str, Any]:
    """`debugging`: which GPUs an ephemeral container says that it sees; None if there is none."""
    asked = {"nvidia.com/gpu": amount, "cpu": cpu}
    path = f"metadata.annotations['{ANNOTATION_VISIBLE_DEVICES}']"
    own = [{"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    ephemeral = [{"name": "debug", "env": [{"name": VARIABLE, "value": debugging}]}]
    return {
        "metadata": {"name": "pod", "uid": "uid", "annotations": {ANNOTATION_TOPOLOGY: annotation}},
        "spec": {
            "runtimeClassName": runtime_class,
            "containers": [{"name": name, "env": own, "resources": {"limits": asked, "requests": asked}}],
            "ephemeralContainers": ephemeral if debugging else None,
        },
    }


def answer(read: Any, pod: dict[str, Any]) -> object:
    try:
        return read(pod)
    except InvalidRequestError as error:
        return str(error)


@given(st.lists(st.tuples(*(st.sampled_from(PARTS[part]) for part in PARTS)), max_size=20))
def test_every_answer_is_that_of_reading_the_pod_anew(asked: list[tuple[Any, ...]]) -> None:
    for parts in asked:
        pod = a_pod(*parts)

        assert answer(pod_request, pod) == answer(codec._read_request, deepcopy(pod))


def test_an_annotation_that_is_null_is_not_one_that_is_absent() -> None:
    pod = a_pod("1", "1", "nvlink", None, "main")
    null = deepcopy(pod)
    null["metadata"]["annotations"][ANNOTATION_MIG_PROFILE] = None

    assert pod_request(pod) is not None
    with pytest.raises(InvalidRequestError):
        pod_request(null)


def test_what_is_remembered_is_bounded_in_number_and_size() -> None:
    huge = a_pod("1", "1", None, None, "main")
    huge["spec"]["containers"][0]["env"] += [{"name": "A", "value": "x" * MAX_KNOWN_BYTES}]

    for number in range(MAX_KNOWN_REQUESTS + 10):
        pod_request(a_pod("1", str(number + 1), None, None, "main"))
    pod_request(huge)

    assert len(codec._known_requests) <= MAX_KNOWN_REQUESTS
    assert all(len(content) <= MAX_KNOWN_BYTES for content in codec._known_requests)
