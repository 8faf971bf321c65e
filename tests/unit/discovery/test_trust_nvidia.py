"""What costs a node the trust where the kubelet gives out its GPUs: number and owner."""

from dataclasses import replace

import pytest

from services.discovery.core.findings import Cause
from services.discovery.core.pods import Asked
from tests.unit.discovery.builders import (
    a_plugged_pod,
    a_pod,
    an_allocation,
    held,
    share,
)
from tests.unit.discovery.judging import KUBELET, PROCESS, at_once, plugged, settled


@pytest.mark.parametrize("letter", ["b", "z"])
def test_a_prediction_from_before_an_nvidia_node_registered_again_closes_nothing(letter: str) -> None:
    predicted = an_allocation("train", share(letter), node="before", advisory=True)
    pod = a_plugged_pod(allocation=predicted)

    assert settled(plugged(held("train", "a", source=KUBELET)), pod) == set()


def test_on_an_nvidia_node_the_choice_of_devices_is_the_kubelet_s() -> None:
    predicted = an_allocation("train", share("a"), advisory=True)

    assert settled(plugged(held("train", "b", source=KUBELET)), a_plugged_pod(allocation=predicted)) == set()


@pytest.mark.parametrize(
    ("asked", "closed"), [(Asked(1, 1), {"GPU-a", "GPU-b"}), (Asked(0, 0), {"GPU-a", "GPU-b"})]
)
def test_on_an_nvidia_node_too_many_devices_close_those(asked: Asked, closed: set[str]) -> None:
    state, pod = plugged(held("train", "a", "b", source=KUBELET)), a_pod(asked=asked)

    assert at_once(state, pod) == set()
    assert settled(state, pod) == {(Cause.WRONG_COUNT, gpu_uuid) for gpu_uuid in closed}


def test_on_an_nvidia_node_too_few_devices_close_the_node_because_the_others_may_be_any() -> None:
    state, pod = plugged(held("train", "a", source=KUBELET)), a_plugged_pod(count=2)

    assert at_once(state, pod) == set()
    assert settled(state, pod) == {(Cause.WRONG_COUNT, "")}


def test_several_replicas_of_one_gpu_are_as_many_devices_as_the_kubelet_gave() -> None:
    two_replicas = replace(held("train", "a", source=KUBELET), given=2)

    assert settled(plugged(two_replicas), a_plugged_pod(count=2)) == set()
    assert settled(plugged(two_replicas), a_plugged_pod(count=1)) == {(Cause.WRONG_COUNT, "GPU-a")}
    assert settled(plugged(two_replicas), a_plugged_pod(count=3)) == {(Cause.WRONG_COUNT, "")}


def test_replicas_of_one_gpu_in_two_containers_add_up() -> None:
    first = held("train", "a", source=KUBELET)

    assert settled(plugged(first, replace(first, container="other")), a_plugged_pod(count=2)) == set()


def test_devices_that_only_an_init_container_asks_for_are_not_missed() -> None:
    pod = a_pod(asked=Asked(lasting=1, most=2))

    assert settled(plugged(held("train", "a", source=KUBELET)), pod) == set()
    assert settled(plugged(held("train", "a", "b", source=KUBELET)), pod) == set()


def test_a_request_that_can_not_be_read_is_compared_with_nothing() -> None:
    assert settled(plugged(held(source=KUBELET)), a_pod(asked=None)) == set()


def test_on_an_nvidia_node_a_pod_not_yet_shown_by_the_kubelet_is_no_disagreement() -> None:
    assert settled(plugged(), a_plugged_pod(count=2)) == set()


def test_on_an_nvidia_node_a_process_on_a_gpu_that_the_kubelet_gave_to_nobody_closes_it() -> None:
    state, pod = (
        plugged(held("train", "a", source=KUBELET), held("train", "b", source=PROCESS)),
        a_plugged_pod(),
    )

    assert at_once(state, pod) == set()
    assert settled(state, pod) == {(Cause.HELD_WITHOUT_ALLOCATION, "GPU-b")}


def test_on_an_nvidia_node_two_pods_that_the_kubelet_shows_on_one_gpu_are_two_owners() -> None:
    state = plugged(held("one", source=KUBELET), held("two", source=KUBELET))

    assert at_once(state, a_plugged_pod("one"), a_plugged_pod("two")) == {(Cause.SECOND_OWNER, "GPU-a")}
