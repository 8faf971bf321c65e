"""Nominated pods, through the verbs of the whole extender: their room is kept, and given to them or back."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuloom.placement.reasons import KEPT
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubeapi.verbs.store import PRIORITY_CLASSES, STATUS
from services.scheduler_extender import app
from tests.mesh.scheduler_extender.kubernetes import JsonObject, devices_of, node_of, the_pod
from tests.mesh.scheduler_extender.mesh import a_cluster, ready
from tests.mesh.scheduler_extender.test_extender import (
    a_bind,
    a_call,
    capacity_epoch,
    filtered_to,
    schedule,
)
from tests.mesh.waiting import until
from tests.unit.scheduler_extender.builders import gpuloom_share

TAKEN = "not enough free GPUs: 1 asked"
URGENT, MORE_URGENT = 100, 200


async def test_a_nominated_pod_keeps_its_room_against_those_below_it_and_gets_it(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=2)
        service = await cluster.start_extender()
        await ready(service)
        low, other = a_pod(cluster.api, "low"), a_pod(cluster.api, "other")
        a_pod(cluster.api, "urgent", URGENT)
        urgent = nominate(cluster.api, "urgent", "n1")

        async with cluster.line(service) as line:
            assert await schedule(line, low, "n1") == "n1"
            await filtered_to(line, other, [])
            refused = (await line.post("/filter", a_call(other, "n1"))).json
            bound = (await line.post("/bind", a_bind(other, "n1"))).json["Error"]
            placed = await schedule(line, urgent, "n1")

        assert refused["FailedNodes"] == {"n1": TAKEN}
        assert bound == TAKEN
        assert placed == "n1"
        assert sorted(devices_of(cluster.api, "low") + devices_of(cluster.api, "urgent")) == [
            "GPU-n1-0",
            "GPU-n1-1",
        ]


async def test_a_pod_of_higher_priority_is_not_held_back(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        service = await cluster.start_extender()
        await ready(service)
        low, above = a_pod(cluster.api, "low"), a_pod(cluster.api, "above", MORE_URGENT)
        a_pod(cluster.api, "urgent", URGENT)
        nominate(cluster.api, "urgent", "n1")

        async with cluster.line(service) as line:
            await filtered_to(line, low, [])
            placed = await schedule(line, above, "n1")

        assert placed == node_of(cluster.api, "above") == "n1"


async def test_while_a_nominated_pod_waits_for_room_its_node_is_kept_for_it(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=2)
        service = await cluster.start_extender()
        await ready(service)
        victim, low = a_pod(cluster.api, "victim"), a_pod(cluster.api, "low")
        a_pod(cluster.api, "urgent", URGENT, gpuloom_share(2000))

        async with cluster.line(service) as line:
            await schedule(line, victim, "n1")
            nominate(cluster.api, "urgent", "n1")
            await filtered_to(line, low, [])
            refused = (await line.post("/filter", a_call(low, "n1"))).json
            bound = (await line.post("/bind", a_bind(low, "n1"))).json["Error"]

        assert refused["FailedNodes"] == {"n1": KEPT}
        assert bound == KEPT


async def test_room_that_is_no_longer_promised_is_free_and_wakes_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WAKE_INTERVAL_S", 0.02)

    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        service = await cluster.start_extender()
        await ready(service)
        low = a_pod(cluster.api, "low")
        a_pod(cluster.api, "urgent", URGENT)
        nominate(cluster.api, "urgent", "n1")

        async with cluster.line(service) as line:
            await filtered_to(line, low, [])
            epoch = capacity_epoch(cluster, "n1")
            nominate(cluster.api, "urgent", "")
            await until(lambda: capacity_epoch(cluster, "n1") != epoch)
            await filtered_to(line, low, ["n1"])
            placed = await schedule(line, low, "n1")

        assert placed == "n1"


async def test_a_new_leader_keeps_what_was_promised_before_it(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        low = a_pod(cluster.api, "low")
        a_pod(cluster.api, "urgent", URGENT)
        nominate(cluster.api, "urgent", "n1")

        service = await cluster.start_extender()
        await ready(service)
        refused = (await cluster.ask(service, "filter", a_call(low, "n1"))).json

        assert refused["FailedNodes"] == {"n1": TAKEN}


def a_pod(
    api: SimKubeApi, name: str, priority: int = 0, resources: Mapping[str, str] | None = None
) -> JsonObject:
    """A pod that waits, of a class with this priority; it asks for one whole card unless told otherwise."""
    asked = dict(gpuloom_share(1000) if resources is None else resources)
    container = {"name": "main", "image": "example.test/main", "resources": {"limits": asked}}
    spec: JsonObject = {"containers": [container]}
    if priority:
        name_of_class = f"class-{priority}"
        api.store.create(PRIORITY_CLASSES, {"metadata": {"name": name_of_class}, "value": priority})
        spec["priorityClassName"] = name_of_class
    return api.store.create("pods", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def nominate(api: SimKubeApi, name: str, node: str) -> JsonObject:
    """As kube-scheduler does it, in the pod's status."""
    pod = the_pod(api, name)
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    promised = {"nominatedNodeName": node} if node else {}
    return api.store.update("pods", {**pod, "status": {**status, **promised}}, STATUS)
