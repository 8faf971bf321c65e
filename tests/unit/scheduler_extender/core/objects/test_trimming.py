"""What the informer keeps of a pod says the same to the ledger as the whole pod."""

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import key_of, resource_version_of, uid_of
from gpuloom.names import LABEL_LEADER
from services.scheduler_extender.core.objects.pods import HostShare, asker_of, host_share, observed_pod
from services.scheduler_extender.core.objects.trimming import trim_node, trim_pod
from tests.unit.scheduler_extender.builders import a_node, a_pod, a_ref, an_allocation
from tests.unit.scheduler_extender.builders import given as given_card
from tests.unit.scheduler_extender.nominated_pods import a_ranked_pod

AMOUNTS = st.sampled_from(["1", "500m", "2Gi", "nonsense", 3, None])
RESOURCES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "gpuloom.dev/gpu-milli"]), AMOUNTS
)
ASKED = st.fixed_dictionaries({}, optional={"requests": RESOURCES, "limits": RESOURCES})
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["main", "side", ""]), "image": st.just("work:1")},
        optional={"resources": ASKED, "restartPolicy": st.just("Always"), "env": st.just([{"name": "A"}])},
    ),
    max_size=3,
)
STATES = st.sampled_from([{"running": {"startedAt": "now"}}, {"terminated": {"exitCode": 1}}, {}, None, 7])
STATUSES = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("main")}, optional={"allocatedResources": RESOURCES, "state": STATES}
    ),
    max_size=2,
)
TEXTS = st.dictionaries(
    st.sampled_from(["gpuloom.dev/allocation", "gpuloom.dev/topology", "other", LABEL_LEADER]),
    st.just("nvlink"),
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    pod = a_pod(node=draw(st.sampled_from(["", "node"])), phase=draw(st.sampled_from(["Running", "Failed"])))
    pod["metadata"] |= {"annotations": draw(TEXTS), "labels": draw(TEXTS), "managedFields": [{}]}
    pod["spec"] |= {"containers": draw(CONTAINERS), "initContainers": draw(CONTAINERS)}
    pod["spec"] |= draw(st.fixed_dictionaries({}, optional={"overhead": RESOURCES, "resources": ASKED}))
    pod["status"] |= {"containerStatuses": draw(STATUSES), "startTime": draw(st.sampled_from(["now", None]))}
    pod["status"] |= {"ephemeralContainerStatuses": draw(STATUSES)}
    return pod


def said(read: Any, pod: dict[str, Any]) -> object:
    try:
        return read(pod)
    except InvalidRequestError as error:
        return str(error)


def share_of(pod: dict[str, Any]) -> HostShare | None:
    return host_share(pod, observed_pod(pod))


def share_by_containers(pod: dict[str, Any]) -> HostShare | None:
    return host_share(pod, None)


@given(pod=pods())
def test_a_pod_that_the_ledger_knows_takes_what_its_containers_ask_for(pod: dict[str, Any]) -> None:
    if observed_pod(pod) is not None:
        assert said(share_of, pod) == said(share_by_containers, pod)


@given(pod=pods())
def test_a_trimmed_pod_says_the_same(pod: dict[str, Any]) -> None:
    whole = deepcopy(pod)

    trimmed = trim_pod(pod)

    for read in (
        observed_pod,
        share_of,
        share_by_containers,
        pod_request,
        key_of,
        uid_of,
        resource_version_of,
    ):
        assert said(read, trimmed) == said(read, whole)
    assert pod == whole


def test_a_bound_pod_loses_what_nobody_reads_and_a_waiting_one_does_not() -> None:
    bound, waiting = a_pod(node="node"), a_pod()
    for pod in (bound, waiting):
        pod["spec"]["affinity"] = {"nodeAffinity": {}}
        pod["metadata"]["managedFields"] = [{}]

    assert "affinity" not in trim_pod(bound)["spec"]
    assert "affinity" in trim_pod(waiting)["spec"]
    assert all("managedFields" not in trim_pod(pod)["metadata"] for pod in (bound, waiting))


def test_pods_that_ask_alike_share_what_they_ask() -> None:
    allocation = an_allocation(a_ref("a"), given_card("GPU-0"))
    first, second = a_pod(a_ref("a"), node="node", allocation=allocation), a_pod(a_ref("b"), node="node")

    assert trim_pod(first)["spec"]["containers"] is trim_pod(second)["spec"]["containers"]


def test_of_a_node_all_that_kube_schedulers_filters_look_at_is_kept() -> None:
    node = a_node("n1")
    node["metadata"] |= {"labels": {"zone": "a"}}
    node["spec"] = {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True}
    node["status"]["allocatable"] |= {"ephemeral-storage": "1"}
    whole = deepcopy(node)
    node["metadata"] |= {"annotations": {"some": "text"}}
    node["spec"] |= {"podCIDR": "10.0.0.0/24"}
    node["status"] |= {"images": ["many"]}

    assert trim_node(node) == whole


def test_what_is_no_pod_is_left_to_its_judges() -> None:
    strange: list[dict[str, Any]] = [
        {},
        {"spec": None},
        {"spec": {"nodeName": "n"}, "metadata": {"annotations": "text"}},
    ]

    assert [trim_pod(pod) for pod in strange] == strange


def test_of_a_pod_that_waits_its_nomination_is_kept_and_of_a_bound_one_its_priority_alone() -> None:
    waiting, bound = a_ranked_pod("pod", 7, nominated="node"), a_ranked_pod("pod", 7, nominated="node")
    bound["spec"]["nodeName"] = "node"

    kept = trim_pod(bound)

    assert asker_of(trim_pod(waiting)) == asker_of(waiting)
    assert "creationTimestamp" not in kept["metadata"]
    assert kept["spec"]["priority"] == 7
    assert "nominatedNodeName" not in kept["status"]


def test_what_a_huge_pod_asks_for_is_not_kept_when_it_has_gone() -> None:
    huge = a_pod(a_ref("huge"), {f"example.com/{number}": "1" for number in range(10_000)}, node="node")

    kept = trim_pod(huge)

    assert kept["spec"]["containers"] == huge["spec"]["containers"]
    assert kept["spec"]["containers"] is not trim_pod(huge)["spec"]["containers"]
