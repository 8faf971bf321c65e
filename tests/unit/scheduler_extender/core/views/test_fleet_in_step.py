"""The fleet that is kept beside the views answers as the views do, whatever happened before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.codec.pod import pod_request
from gpuloom.kube.cache import Change
from gpuloom.model.request import PodRequest
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import filter_nodes
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.state.cluster import ClusterState
from tests.effort import examples
from tests.unit.scheduler_extender.builders import (
    HandClock,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    an_allocation,
    gpuloom_share,
    some_facts,
)
from tests.unit.scheduler_extender.builders import (
    given as given_card,
)

NAMES = ("n1", "n2", "n3")
STEPS = ("appear", "vanish", "facts", "distrust", "attempt", "bind", "end", "stale", "refresh")


class Cluster:
    """Steps that come in any order; `pod` is the number of a pod, and names its node too."""

    def __init__(self) -> None:
        self.stale = False
        self.state = ClusterState(Ledger(30.0), lambda: self.stale, HandClock())
        self.evaluator = Evaluator(ScoreWeights())
        self.state.views.keep(self.evaluator.fleet)

    def take(self, step: str, number: int) -> None:
        name, pod = NAMES[number], a_ref(f"pod-{number}")
        given_here = an_allocation(pod, given_card(f"GPU-{name}"), node_uid=f"uid-{name}")
        match step:
            case "appear":
                self.state.observe_node(Change(None, a_node(name, cpu=str(8 + number))))
            case "vanish":
                self.state.observe_node(Change(a_node(name), None))
            case "facts" | "distrust":
                untrusted = "silent" if step == "distrust" else ""
                gpus = (a_gpu(f"GPU-{name}"), a_gpu(f"GPU-{name}-1", 1))
                self.state.observe_facts(f"uid-{name}", some_facts(name, *gpus, untrusted=untrusted))
            case "attempt":
                self.state.ledger.begin(Attempt(pod, name, given_here))
            case "bind" | "end":
                phase = "Running" if step == "bind" else "Succeeded"
                bound = a_pod(pod, node=name, phase=phase, allocation=given_here)
                self.state.observe_pod(Change(None, bound))
            case "stale":
                self.stale = not self.stale
            case _:
                self.state.views.refresh(1)


def asked(milli: int) -> PodRequest:
    request = pod_request(a_pod(resources=gpuloom_share(milli)))
    assert request is not None
    return request


@settings(max_examples=examples(200))
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), max_size=25),
    milli=st.sampled_from([500, 1000, 2000]),
    asker=st.integers(0, 2),
)
def test_the_fleet_answers_as_views_made_anew_do(
    steps: list[tuple[str, int]], milli: int, asker: int
) -> None:
    cluster, names = Cluster(), (*NAMES, "never-seen")

    for step, number in steps:
        cluster.take(step, number)
        viewer = cluster.state.views.viewer(f"uid-pod-{asker}")
        by_fleet, by_views = (
            filter_nodes(asked(milli), OfferedNames(names), view_of, cluster.evaluator, 2)
            for view_of in (viewer, viewer.__call__)
        )

        assert by_fleet == by_views


def test_a_pod_sees_its_own_holds_as_free_and_nobody_else_does() -> None:
    cluster = Cluster()
    for step in ("appear", "facts", "attempt"):
        cluster.take(step, 0)

    offered, viewer = OfferedNames(("n1",)), cluster.state.views.viewer
    answers = [
        filter_nodes(asked(2000), offered, viewer(uid), cluster.evaluator, 2)
        for uid in ("uid-other", "uid-pod-0", "uid-other")
    ]

    assert [answer.node_names for answer in answers] == [(), ("n1",), ()]


def test_a_status_that_is_written_again_outdates_nothing() -> None:
    cluster = Cluster()
    cluster.take("appear", 0)
    cluster.state.views.viewer()

    cluster.take("appear", 0)

    assert cluster.state.views.outdated == 0


def test_a_pods_own_holds_are_free_for_it_also_where_only_the_best_nodes_are_looked_at() -> None:
    """n1 has fewest cores, so whoever finds room there gets it first."""
    cluster = Cluster()
    for number in range(len(NAMES)):
        cluster.take("appear", number)
        cluster.take("facts", number)
    cluster.take("attempt", 0)
    offered, viewer = OfferedNames(NAMES), cluster.state.views.viewer

    answers = [
        filter_nodes(asked(2000), offered, viewer(uid), cluster.evaluator, 1).node_names
        for uid in ("uid-other", "uid-pod-0", "uid-other")
    ]

    assert answers == [("n2",), ("n1",), ("n2",)]
