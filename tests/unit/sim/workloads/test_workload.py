import itertools
from statistics import fmean

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.catalog import load_catalog
from gpuloom.sim.workloads.plan import NAMESPACES, ClusterSize, PlannedPod, WorkloadPlan
from gpuloom.sim.workloads.player import cluster_size, is_forced, with_fate
from tests.effort import examples
from tests.unit.sim.builders import a_node

SIZE = ClusterSize(nvidia_gpus=48, gpuloom_gpus=48, largest_nvidia_node=8, largest_gpuloom_node=8)


def first(plan: WorkloadPlan, count: int) -> list[PlannedPod]:
    return list(itertools.islice(plan.arrivals(), count))


def limits(pod: PlannedPod) -> dict[str, str]:
    return dict(pod.manifest["spec"]["containers"][0]["resources"]["limits"])


def gpu_seconds(pods: list[PlannedPod], resource: str, unit: int) -> float:
    return sum(
        int(limits(pod)[resource])
        / unit
        * float(pod.manifest["metadata"]["annotations"]["sim.gpuloom.dev/duration"][:-1])
        for pod in pods
        if resource in limits(pod) and pod.give_up_after_s is None
    )


def test_equal_seeds_give_equal_pods() -> None:
    assert first(WorkloadPlan(SIZE, 7), 200) == first(WorkloadPlan(SIZE, 7), 200)
    assert first(WorkloadPlan(SIZE, 7), 200) != first(WorkloadPlan(SIZE, 8), 200)


def test_names_are_unique_and_times_never_go_back() -> None:
    pods = first(WorkloadPlan(SIZE, 1), 500)

    names = {pod.manifest["metadata"]["name"] for pod in pods}
    assert len(names) == 500
    assert all(earlier.at_s <= later.at_s for earlier, later in itertools.pairwise(pods))
    assert {pod.manifest["metadata"]["namespace"] for pod in pods} == set(NAMESPACES)


def test_the_mix_has_every_kind_of_pod() -> None:
    pods = first(WorkloadPlan(SIZE, 1), 2000)

    kinds = {pod.manifest["metadata"]["labels"]["sim.gpuloom.dev/workload"] for pod in pods}
    wishes = {name for pod in pods for name in pod.manifest["metadata"]["annotations"]}
    impossible = sum(pod.give_up_after_s is not None for pod in pods)
    assert kinds >= {"train", "serve", "notebook", "tune"}
    assert wishes >= {"gpuloom.dev/topology", "gpuloom.dev/gpu-model", "gpuloom.dev/gpu-architecture"}
    assert 0 < impossible < 100


@settings(max_examples=examples(4))
@given(nvidia=st.integers(32, 400), ratio=st.floats(0.4, 2.5), seed=st.integers(0, 100))
def test_the_offered_load_keeps_both_kinds_of_nodes_busy_but_not_hopeless(
    nvidia: int, ratio: float, seed: int
) -> None:
    gpuloom = round(nvidia * ratio)
    size = ClusterSize(nvidia, gpuloom, 8, 8)

    # Durations have a long tail: one seed alone may be far from the mean.
    plans = [first(WorkloadPlan(size, seed + other), 3000) for other in range(4)]

    assert 0.7 < fmean(load(pods, "nvidia.com/gpu", 1) / nvidia for pods in plans) < 1.1
    assert 0.7 < fmean(load(pods, "gpuloom.dev/gpu-milli", 1000) / gpuloom for pods in plans) < 1.1


def load(pods: list[PlannedPod], resource: str, unit: int) -> float:
    """GPUs asked for at a time. The first burst stands for a minute of arrivals before the start."""
    steady = [pod for pod in pods if pod.at_s > 5.0]
    return gpu_seconds(steady, resource, unit) / (pods[-1].at_s - 5.0)


def test_a_given_rate_is_kept() -> None:
    pods = first(WorkloadPlan(SIZE, 1, pods_per_minute=600), 3000)

    assert 270 < pods[-1].at_s < 330


def test_training_never_asks_for_more_than_the_largest_node() -> None:
    pods = first(WorkloadPlan(ClusterSize(4, 4, 2, 1), 1), 500)

    possible = [limits(pod) for pod in pods if pod.give_up_after_s is None]
    assert max(int(entry.get("nvidia.com/gpu", 0)) for entry in possible) == 2
    assert max(int(entry.get("gpuloom.dev/gpu-milli", 0)) for entry in possible) == 1000


def test_every_resource_of_the_plan_is_managed() -> None:
    managed = set(load_catalog().managed_resources())

    assert {name for pod in first(WorkloadPlan(SIZE, 1), 500) for name in limits(pod)} <= managed


def test_slices_are_asked_for_as_often_as_there_are_such_and_kept_busy() -> None:
    slices = (("nvidia.com/mig-1g.10gb", 30), ("nvidia.com/mig-3g.40gb", 10))
    size = ClusterSize(16, 16, 8, 8, slices)

    plans = [first(WorkloadPlan(size, seed), 3000) for seed in range(4)]

    for resource, count in slices:
        assert 0.6 < fmean(load(pods, resource, 1) / count for pods in plans) < 1.2
    assert 0.6 < fmean(load(pods, "nvidia.com/gpu", 1) / 16 for pods in plans) < 1.2


def test_a_few_pods_of_every_kind_of_node_are_deleted_by_force_and_do_not_heed_it() -> None:
    pods = first(WorkloadPlan(SIZE, 1), 2000)

    forced = [pod for pod in pods if is_forced(pod.manifest["metadata"]["name"])]
    annotations = [with_fate(pod.manifest)["metadata"]["annotations"] for pod in forced]
    assert 20 < len(forced) < 80
    assert {name for pod in forced for name in limits(pod)} >= {"nvidia.com/gpu", "gpuloom.dev/gpu-milli"}
    assert {(notes["sim.gpuloom.dev/sigterm"], notes["sim.gpuloom.dev/load"]) for notes in annotations} == {
        ("ignored", "0")
    }


def test_the_size_of_a_cluster_is_what_its_nodes_offer() -> None:
    nodes = [
        a_node("a", {"nvidia.com/gpu": "8"}),
        a_node("b", {"nvidia.com/gpu": "4"}),
        a_node("c", {"gpuloom.dev/gpu-milli": "8000"}),
        a_node("d", {"gpuloom.dev/gpu-milli": "broken"}),
        a_node("e", {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "0"}),
    ]

    assert cluster_size(nodes) == ClusterSize(12, 8, 8, 8, (("nvidia.com/mig-1g.10gb", 7),))
