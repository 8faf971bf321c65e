"""What pods say of their devices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError, NotAllowedError, UnavailableError
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import HolderSource
from services.node_agent.delivery.core.comparison import Requested
from services.node_agent.delivery.core.pod_specs import Seat, given_by_environment, requested
from tests.unit.node_agent.delivery.builders import (
    NODE_UID,
    a_device,
    a_pod,
    an_allocation,
    an_informer,
    known_pods,
)

SEAT = Seat("n1", NODE_UID, "nvidia")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def holding(*pods: dict[str, Any]) -> list[str]:
    return [given.pod.name for given in given_by_environment(pods, SEAT).known]


def test_what_is_asked_for_is_found_among_the_other_containers() -> None:
    pod = a_pod(asking=("work",), limits={"gpuloom.dev/gpu-milli": "125", "gpuloom.dev/gpu-memory-mib": "9"})
    pod["spec"]["initContainers"] = [{"name": "prepare"}]
    pod["metadata"]["annotations"]["gpuloom.dev/mig-profile"] = "1g.5gb"

    assert requested(pod) == Requested("work", 125, 9, "1g.5gb")


def test_an_init_container_may_be_the_one_that_asks() -> None:
    pod = a_pod(asking=())
    limits = {"gpuloom.dev/gpu-milli": "500"}
    pod["spec"]["initContainers"] = [{"name": "prepare", "resources": {"limits": limits}}]

    assert requested(pod) == Requested("prepare", 500)


@pytest.mark.parametrize("asking", [(), ("a", "b")])
def test_none_or_several_are_not_one(asking: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{len(asking)} containers of the pod ask"):
        requested(a_pod(asking=asking))


def test_a_pod_holds_its_devices_from_binding_until_its_kubelet_reports_its_end() -> None:
    """Anybody may write a phase; the states of containers are the kubelet's."""
    pods = [
        a_pod(phase, an_allocation(pod=phase), phase=phase)
        for phase in ("Pending", "Running", "Unknown", "Succeeded", "Failed")
    ]
    leaving = a_pod("leaving", an_allocation(pod="leaving"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ended = a_pod("ended", an_allocation(pod="ended"), phase="Failed")
    statuses = [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]
    ended["status"] |= {"startTime": "2026-01-01T00:00:00Z", "containerStatuses": statuses}

    assert holding(*pods, leaving, ended) == [
        "Pending",
        "Running",
        "Unknown",
        "Succeeded",
        "Failed",
        "leaving",
    ]


def test_who_has_no_allocation_of_its_own_holds_nothing() -> None:
    pods = [
        a_pod("plain"),
        a_pod("copied", an_allocation(pod="other")),
        a_pod("moved", an_allocation(pod="moved", node_uid="uid-elsewhere")),
        a_pod("advised", an_allocation(pod="advised", advisory=True)),
        a_pod("elsewhere", an_allocation(pod="elsewhere"), node="n2"),
        a_pod("runc", an_allocation(pod="runc"), runtime_class=None),
    ]

    assert holding(*pods) == []


@given(JSON, JSON, JSON)
def test_whatever_a_pod_looks_like_the_others_are_seen(metadata: Any, spec: Any, status: Any) -> None:
    strange = {"metadata": metadata, "spec": spec, "status": status}

    assert holding(strange, a_pod("train", an_allocation())) == ["train"]


async def test_holders_are_known_by_their_environment() -> None:
    pod = a_pod("train", an_allocation(a_device("GPU-a"), a_device("GPU-b")))
    async with an_informer(pod) as informer:
        (holder,) = await known_pods(informer).holders()

    assert (holder.pod.uid, holder.container, holder.source) == (
        "uid-train",
        "main",
        HolderSource.ENVIRONMENT,
    )
    assert holder.devices == (DeviceRef("GPU-a"), DeviceRef("GPU-b"))


async def test_holders_are_unknown_while_pods_or_what_one_was_given_are() -> None:
    async with an_informer(a_pod("train", an_allocation()), a_pod("newer", '{"v": 2}')) as informer:
        pods = known_pods(informer)

        with pytest.raises(UnavailableError, match="pods are not listed yet"):
            await known_pods(informer, unsynced="pods are not listed yet").holders()
        with pytest.raises(UnavailableError, match="UID of this node"):
            await known_pods(informer, node_uid="").holders()
        with pytest.raises(UnavailableError, match="what pod team-a/newer was given can't be read"):
            await pods.holders()
        assert [given.pod.name for given in pods.given_by_environment()] == ["train"]


async def test_a_pod_is_looked_up_by_its_uid_and_may_be_unknown() -> None:
    async with an_informer(a_pod("train"), a_pod("none", asking=())) as informer:
        pods = known_pods(informer)

        assert pods.requested("uid-train") == Requested("main", 1000)
        assert (pods.service_account("uid-train"), pods.service_account("uid-new")) == ("default", "")
        with pytest.raises(NotAllowedError, match="has not shown this pod to the node agent yet"):
            pods.requested("uid-new")
        with pytest.raises(NotAllowedError, match="0 containers of the pod ask"):
            pods.requested("uid-none")
