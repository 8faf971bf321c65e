from gpuloom.codec.allocation import encode_allocation
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION
from tests.bench.audit import PlacedPod, check_devices, check_nodes, placed_pods
from tests.bench.workload import PodPlan, node_facts, plan_machines, pod_object

MACHINES = plan_machines(2, (NodeMode.GPULOOM, NodeMode.NVIDIA))
NODES = {machine.spec.node: node_facts(machine, f"uid-of-{machine.spec.node}") for machine in MACHINES}
SHARED, PLUGIN = NODES


def a_placed_pod(
    name: str, milli: int, node: str = SHARED, gpu: int = 0, given: int | None = None
) -> PlacedPod:
    facts = NODES[node].state
    device = AllocatedDevice(DeviceRef(facts.gpus[gpu].uuid), given or milli, 1000)
    allocation = Allocation(f"uid-{name}", facts.node_uid, "work", False, (device,))
    return PlacedPod(PodPlan(name, facts.mode, milli), f"uid-{name}", node, encode_allocation(allocation))


def test_two_halves_of_one_card_are_fine() -> None:
    pods = [a_placed_pod("a", 500), a_placed_pod("b", 500)]

    assert check_nodes(pods, NODES) == []
    assert check_devices(pods, NODES) == []


def test_a_card_that_was_given_out_beyond_its_capacity_is_found() -> None:
    pods = [a_placed_pod("a", 500), a_placed_pod("b", 500), a_placed_pod("c", 250)]

    (problem,) = check_devices(pods, NODES)

    assert "beyond its capacity: 1250 milli" in problem


def test_a_pod_without_an_allocation_is_found() -> None:
    pod = PlacedPod(PodPlan("a", NodeMode.GPULOOM, 500), "uid-a", SHARED, None)

    assert check_devices([pod], NODES) == ["a: no allocation"]


def test_an_allocation_of_another_pod_or_another_amount_is_found() -> None:
    stolen = PlacedPod(
        PodPlan("b", NodeMode.GPULOOM, 500), "uid-b", SHARED, a_placed_pod("a", 500).allocation_text
    )

    assert check_devices([stolen], NODES) == ["b: the allocation names another pod"]
    assert check_devices([a_placed_pod("c", 1000, given=500)], NODES) == [
        "c: asked for 1000 milli and was given 500"
    ]


def test_a_pod_that_is_nowhere_or_on_the_wrong_kind_of_node_is_found() -> None:
    nowhere = PlacedPod(PodPlan("a", NodeMode.GPULOOM, 500), "uid-a", "", None)
    wrong = PlacedPod(PodPlan("b", NodeMode.GPULOOM, 500), "uid-b", PLUGIN, None)

    assert len(check_nodes([nowhere, wrong], NODES)) == 2


def test_a_node_with_more_than_its_cards_is_found() -> None:
    pods = [a_placed_pod(f"p{index}", 4000) for index in range(3)]

    assert check_nodes(pods, NODES) == [f"{SHARED} has pods for 12000 milli of GPU"]


def test_placed_pods_are_read_from_kubernetes_objects() -> None:
    plan = PodPlan("a", NodeMode.GPULOOM, 500)
    pod = pod_object(plan, "scheduler")
    pod["metadata"] |= {"uid": "uid-a", "annotations": {ANNOTATION_ALLOCATION: "{}"}}
    pod["spec"]["nodeName"] = SHARED

    assert placed_pods([plan], [pod]) == [PlacedPod(plan, "uid-a", SHARED, "{}")]
    assert placed_pods([plan], []) == [PlacedPod(plan, "", "", None)]
