"""What a filter costs does not grow with the number of pods that wait with a promised node."""

from functools import partial

from gpuloom.kube.cache import Change
from gpuloom.placement.occupancy.nominations import Asker
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import filter_nodes
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.verbs.wire import FilterAnswer
from services.scheduler_extender.state.cluster import ClusterState
from tests.unit.scheduler_extender.builders import HandClock, a_gpu, a_node, some_facts
from tests.unit.scheduler_extender.core.views.test_fleet_in_step import asked
from tests.unit.scheduler_extender.costs import lines_run
from tests.unit.scheduler_extender.nominated_pods import a_ranked_pod

NAMES = tuple(f"n{number:03}" for number in range(60))


class Cluster:
    def __init__(self, nominated: int) -> None:
        self.state = ClusterState(Ledger(30.0), lambda: False, HandClock())
        self.evaluator = Evaluator(ScoreWeights())
        self.state.views.keep(self.evaluator.fleet)
        for name in NAMES:
            self.state.observe_node(Change(None, a_node(name)))
            cards = (a_gpu(f"GPU-{name}-0"), a_gpu(f"GPU-{name}-1", 1))
            self.state.observe_facts(f"uid-{name}", some_facts(name, *cards))
        for name in NAMES[:nominated]:
            pod = a_ranked_pod(f"promised-{name}", 5, nominated=name)
            self.state.observe_pod(Change(None, pod))

    def ask(self, asker: Asker) -> FilterAnswer:
        viewer = self.state.views.viewer(asker)
        return filter_nodes(asked(2000), OfferedNames(NAMES), viewer, self.evaluator, 1)


def test_a_filter_after_another_costs_the_same_beside_few_and_beside_many_nominated_pods() -> None:
    few, many = Cluster(nominated=2), Cluster(nominated=50)
    for cluster in (few, many):
        cluster.ask(Asker("first"))

    costs = [lines_run(partial(cluster.ask, Asker("second", 5))) for cluster in (few, many)]

    assert costs[0] == costs[1]
    assert [cluster.ask(Asker("third")).node_names for cluster in (few, many)] == [("n002",), ("n050",)]
