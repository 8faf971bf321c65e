"""What the nodes of the cluster offer, whatever they are, however often they change."""

import pytest

from gpuloom.model.gpu import Gpu
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.runtime.clock import FakeClock
from services.webhook.adapters.kubernetes import KubernetesCluster
from services.webhook.core.pods import PodPolicy, Surroundings, mutated_pod
from services.webhook.core.surroundings import offers_of
from tests.unit.webhook.test_pods import a_pod, limits_of


def a_node(model: str) -> NodeState:
    gpu = Gpu("GPU-1", 0, model, "ampere", 40960)
    return NodeState("n", "u", NodeMode.GPULOOM, Delivery.NRI, (gpu,))


def test_a_gpu_that_the_catalogue_lacks_hides_no_other() -> None:
    offers = offers_of([a_node("X900-SXM"), a_node("A100-40GB")])

    assert offers.shares
    assert "1g.5gb" in offers.mig_profiles


@pytest.mark.parametrize(
    ("models", "milli"),
    [
        (["A100-40GB"], "250"),
        (["A100-80GB"], "125"),
        (["H100-80GB"], "125"),
        (["A100-40GB", "A100-80GB"], "125"),
    ],
)
def test_a_slice_is_asked_for_as_what_it_stands_for_on_the_gpus_that_are_here(
    models: list[str], milli: str
) -> None:
    offers = offers_of([a_node(model) for model in models])
    pod = a_pod(labels={"gpu-autoscaler.io/mig-profile": "1g.10gb"})

    changed, _ = mutated_pod(pod, "team", PodPolicy(), Surroundings({}, offers))

    assert limits_of(changed) == {"gpuloom.dev/gpu-milli": milli}


async def test_what_nodes_offer_follows_them_within_a_second_and_is_not_worked_out_for_every_pod() -> None:
    clock, nodes = FakeClock(), [a_node("T4")]
    asked: list[float] = []

    def states() -> list[NodeState]:
        asked.append(clock.monotonic())
        return nodes

    cluster = KubernetesCluster(None, clock, states)  # type: ignore[arg-type]
    first = cluster.surroundings({}, "team").offers.mig_profiles
    nodes.append(a_node("A100-40GB"))
    for _ in range(100):
        cluster.nodes_changed()
        cluster.surroundings({}, "team")
    early = len(asked)
    await clock.advance(1.0)
    later = cluster.surroundings({}, "team").offers.mig_profiles
    cluster.surroundings({}, "team")

    assert (first, early, len(asked)) == (frozenset(), 1, 2)
    assert "1g.5gb" in later
