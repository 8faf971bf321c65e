"""What the engine makes of Kubernetes' news."""

from types import SimpleNamespace

from gpuloom.kube.cache import Change, ObjectCache
from gpuloom.runtime.clock import FakeClock
from services.cost_engine.core.objects import SliceRule
from services.cost_engine.core.tracking import Tracker
from services.cost_engine.ingest.facts import BY_NODE, FactWriter, names_of_node
from tests.unit.cost_engine.core.test_complaints import a_kube_node, a_kube_pod


async def test_pods_stay_on_a_node_that_was_deleted_and_registered_itself_anew() -> None:
    clock, tracker = FakeClock(), Tracker(0, (), SliceRule.COMPUTE)
    pods = ObjectCache({BY_NODE: names_of_node})
    writer = FactWriter(SimpleNamespace(pods=pods), None, tracker, clock)  # type: ignore[arg-type]
    node, pod = a_kube_node(**{"nvidia.com_gpu": "1"}), a_kube_pod("p", "nvidia.com/gpu", 1)
    again = {**node, "metadata": {**node["metadata"], "uid": "uid-again"}}
    pods.commit(Change(None, pod))
    writer._observe_node(Change(None, node))
    assert tracker.pods["p"].node_uid == "uid-n"

    await clock.advance(60)
    writer._observe_node(Change(node, None))
    assert tracker.pods == {}
    writer._observe_node(Change(None, again))

    assert tracker.pods["p"].node_uid == "uid-again"
    assert [change.interval.end_ns is None for change in tracker.drain().pods] == [True, False, True]
