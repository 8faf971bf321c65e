"""Pods whose node is gone."""

from gpuloom.kube.objects import JsonObject
from gpuloom.sim.controllers.lost_pods import QUARANTINE_S, find_lost_pods


def a_bound_pod(name: str, node: str) -> JsonObject:
    return {"metadata": {"namespace": "team", "name": name, "uid": name}, "spec": {"nodeName": node}}


def test_a_pod_is_lost_only_when_its_node_has_been_gone_for_long() -> None:
    pods = [a_bound_pod("kept", "here"), a_bound_pod("lost", "gone"), a_bound_pod("waits", "")]

    first = find_lost_pods(pods, {"here"}, {}, now_s=100.0)
    later = find_lost_pods(pods, {"here"}, first.missing_since_s, now_s=100.0 + QUARANTINE_S)
    back = find_lost_pods(pods, {"here", "gone"}, later.missing_since_s, now_s=1000.0)

    assert first.deletions == ()
    assert [deletion.name for deletion in later.deletions] == ["lost"]
    assert back.missing_since_s == {}
