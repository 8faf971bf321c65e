import pytest

from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import NodeMode
from gpuloom.model.request import RequestKind
from tests.bench.workload import PodPlan, node_facts, plan_machines, plan_pods, pod_object, refuse_crowding

BOTH = (NodeMode.NVIDIA, NodeMode.GPULOOM)


def test_the_same_seed_gives_the_same_pods() -> None:
    assert plan_pods(50, BOTH, seed=7) == plan_pods(50, BOTH, seed=7)
    assert plan_pods(50, BOTH, seed=7) != plan_pods(50, BOTH, seed=8)


def test_a_burst_mixes_modes_whole_cards_and_shares() -> None:
    pods = plan_pods(200, BOTH, seed=1)

    assert {pod.mode for pod in pods} == set(BOTH)
    assert {1000, 2000, 4000, 8000} <= {pod.milli for pod in pods if pod.mode is NodeMode.NVIDIA}
    assert {250, 500, 1000} <= {pod.milli for pod in pods if pod.mode is NodeMode.GPULOOM}


@pytest.mark.parametrize(
    ("plan", "kind", "count"),
    [
        (PodPlan("a", NodeMode.NVIDIA, 4000), RequestKind.WHOLE, 4),
        (PodPlan("b", NodeMode.GPULOOM, 250), RequestKind.SHARE, 1),
        (PodPlan("c", NodeMode.GPULOOM, 2000), RequestKind.WHOLE, 2),
    ],
)
def test_a_pod_asks_for_what_was_planned(plan: PodPlan, kind: RequestKind, count: int) -> None:
    request = pod_request(pod_object(plan, "some-scheduler"))

    assert request is not None
    assert (request.gpu.kind, request.gpu.count) == (kind, count)
    assert request.gpu.authority.value == plan.mode.value


def test_nodes_take_turns_in_their_modes_and_have_eight_usable_gpus() -> None:
    machines = plan_machines(4, BOTH)
    facts = [node_facts(machine, f"uid-{machine.spec.node}") for machine in machines]

    assert [item.state.mode for item in facts] == [*BOTH, *BOTH]
    assert all(item.trusted and len(item.state.gpus) == 8 for item in facts)
    assert len({gpu.uuid for item in facts for gpu in item.state.gpus}) == 32


def test_more_than_half_of_the_capacity_of_a_mode_is_refused() -> None:
    machines = plan_machines(2, BOTH)
    half = [PodPlan("a", NodeMode.NVIDIA, 4000)]

    refuse_crowding(machines, half)
    with pytest.raises(InvalidRequestError, match="take more nodes or fewer pods"):
        refuse_crowding(machines, [*half, PodPlan("b", NodeMode.NVIDIA, 1000)])
