"""What the nodes of the cluster offer, whatever they are, however often they change."""

from gpuloom.model.gpu import Gpu
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.runtime.clock import FakeClock
from services.webhook.adapters.kubernetes import KubernetesCluster
from services.webhook.core.surroundings import offers_of


def a_node(model: str) -> NodeState:
    gpu = Gpu("GPU-1", 0, model, "ampere", 40960)
    return NodeState("n", "u", NodeMode.GPULOOM, Delivery.NRI, (gpu,))


def test_a_gpu_that_the_catalogue_lacks_hides_no_other() -> None:
    offers = offers_of([a_node("X900-SXM"), a_node("A100-40GB")])

    assert offers.shares
    assert "1g.5gb" in offers.mig_profiles


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
