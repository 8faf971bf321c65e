"""The whole extender over HTTPS and gRPC, against a simulated Kubernetes API and a real discovery server."""

import asyncio
from pathlib import Path

import pytest

from gpuloom.clients.extender import list_allocations
from gpuloom.model.ledger import EntryState
from gpuloom.model.node import NodeMode
from gpuloom.names import (
    ANNOTATION_CAPACITY_EPOCH,
    ANNOTATION_EPOCH,
    ANNOTATION_VISIBLE_DEVICES,
)
from gpuloom.rpc.dev_ca import tls_files
from services.scheduler_extender import app
from tests.mesh.node_agent.builders import Service
from tests.mesh.rpc.builders import a_channel, an_environment
from tests.mesh.scheduler_extender.kubernetes import (
    BINDING,
    JsonObject,
    add_pod,
    allocation_of,
    devices_of,
    node_of,
    owners,
    the_pod,
)
from tests.mesh.scheduler_extender.line import Line, a_line, showing_nothing
from tests.mesh.scheduler_extender.mesh import Cluster, a_cluster, https_port, ready
from tests.mesh.waiting import PATIENCE_S, until
from tests.unit.scheduler_extender.builders import nvidia_cards

STALE = "node closed: device facts are stale"


async def test_it_is_ready_only_after_stamps_lists_and_facts(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        cluster.world.nodes_synced = False
        pod = add_pod(cluster.api, "p")
        stamp = cluster.api.faults.delay_next("PATCH", r"/pods/p$")
        listing = cluster.api.faults.delay_next("GET", r"/nodes$")
        service = await cluster.start_extender()

        await stamp.reached()
        refusals = [await refusal(cluster, service, pod)]
        stamp.release()
        await listing.reached()
        refusals.append(await refusal(cluster, service, pod))
        listing.release()
        await until(lambda: "no device facts" in "".join(service.not_ready()))
        refusals.append(await refusal(cluster, service, pod))
        cluster.world.nodes_synced = True
        await ready(service)
        answer = await cluster.ask(service, "filter", a_call(pod, "n1"))

        assert refusals == [
            "GPULoom is not ready: pods and nodes are not listed yet\n",
            "GPULoom is not ready: pods and nodes are not listed yet\n",
            "GPULoom is not ready: no device facts from discovery yet\n",
        ]
        assert answer.json["NodeNames"] == ["n1"]
        assert the_pod(cluster.api, "p")["metadata"]["annotations"][ANNOTATION_EPOCH]


async def test_a_pod_is_bound_with_its_allocation_on_a_gpuloom_node(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=2)
        cluster.add_node("n2", mode=NodeMode.NVIDIA)
        service = await cluster.start_extender()
        await ready(service)
        pod = add_pod(cluster.api, "p")

        async with cluster.line(service) as line:
            chosen = await schedule(line, pod, "n1", "n2")

        annotations = the_pod(cluster.api, "p")["metadata"]["annotations"]
        allocation = allocation_of(cluster.api, "p")
        assert chosen == node_of(cluster.api, "p") == "n1"
        assert allocation.pod_uid == pod["metadata"]["uid"]
        assert allocation.node_uid == uid_of_node(cluster, "n1")
        assert not allocation.advisory
        assert devices_of(cluster.api, "p")[0] in ("GPU-n1-0", "GPU-n1-1")
        assert annotations[ANNOTATION_VISIBLE_DEVICES] == devices_of(cluster.api, "p")[0]


async def test_a_pod_is_bound_with_an_advisory_allocation_on_an_nvidia_node(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        cluster.add_node("n2", gpus=4, mode=NodeMode.NVIDIA)
        service = await cluster.start_extender()
        await ready(service)
        pod = add_pod(cluster.api, "p", nvidia_cards(2))

        async with cluster.line(service) as line:
            chosen = await schedule(line, pod, "n1", "n2")

        allocation = allocation_of(cluster.api, "p")
        assert chosen == node_of(cluster.api, "p") == "n2"
        assert allocation.advisory
        assert len(set(devices_of(cluster.api, "p"))) == 2
        assert ANNOTATION_VISIBLE_DEVICES not in the_pod(cluster.api, "p")["metadata"]["annotations"]


async def test_pods_scheduled_side_by_side_share_no_device(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        names = [f"n{number}" for number in range(4)]
        for name in names:
            cluster.add_node(name, gpus=4)
        service = await cluster.start_extender()
        await ready(service)
        pods = [add_pod(cluster.api, f"p{number}") for number in range(20)]

        async def place(pod: JsonObject) -> str:
            async with cluster.line(service) as line:
                return await schedule(line, pod, *names, tries=30)

        placed = await asyncio.gather(*map(place, pods))

        assert sum(bool(name) for name in placed) == 16
        assert len(owners(cluster.api)) == 16


async def test_facts_that_go_stale_close_every_node_until_they_are_fresh_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WAKE_INTERVAL_S", 0.02)

    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        service = await cluster.start_extender(GPULOOM_EXTENDER_FACTS_TTL="500ms")
        await ready(service)
        pod = add_pod(cluster.api, "p")
        async with cluster.line(service) as line:
            await filtered_to(line, pod, ["n1"])

            await cluster.stop_discovery()
            await filtered_to(line, pod, [])
            closed = (await line.post("/filter", a_call(pod, "n1"))).json
            bound = (await line.post("/bind", a_bind(pod, "n1"))).json["Error"]
            still_ready = not service.not_ready()
            epoch = capacity_epoch(cluster, "n1")
            await cluster.start_discovery()
            await filtered_to(line, pod, ["n1"])
        # That wakes the pod in kube-scheduler, which sees nothing of device facts.
        await until(lambda: capacity_epoch(cluster, "n1") != epoch)

        assert closed["FailedAndUnresolvableNodes"] == {"n1": STALE}
        assert bound == STALE
        assert still_ready


async def test_a_new_extender_knows_what_the_one_before_gave(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=2)
        first = await cluster.start_extender()
        await ready(first)
        kept, next_pod = add_pod(cluster.api, "kept"), add_pod(cluster.api, "next")
        async with cluster.line(first) as line:
            await schedule(line, kept, "n1")
        stopped = await first.stop()

        second = await cluster.start_extender()
        await ready(second)
        async with cluster.line(second) as line:
            await schedule(line, next_pod, "n1")
            third = (await line.post("/filter", a_call(add_pod(cluster.api, "third"), "n1"))).json

        assert stopped == 0
        assert sorted(devices_of(cluster.api, "kept") + devices_of(cluster.api, "next")) == [
            "GPU-n1-0",
            "GPU-n1-1",
        ]
        assert list(third["FailedNodes"]) == ["n1"]


async def test_the_ledger_is_shown_over_grpc(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        service = await cluster.start_extender()
        await ready(service)
        pod = add_pod(cluster.api, "p")
        async with cluster.line(service) as line:
            await schedule(line, pod, "n1")

        environment = an_environment(tls_files(tmp_path, "cli"))
        async with a_channel(environment, service.servers[0]) as channel:
            entries = await list_allocations(channel)

        assert [(entry.pod.name, entry.node_name) for entry in entries] == [("p", "n1")]
        assert entries[0].state in (EntryState.IN_FLIGHT, EntryState.OBSERVED)


async def test_a_bind_that_is_under_way_at_the_stop_is_finished_and_answered(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        service = await cluster.start_extender()
        await ready(service)
        pod = add_pod(cluster.api, "p")
        hold = cluster.api.faults.delay_next("POST", BINDING)

        async with cluster.line(service) as line:
            answer = asyncio.create_task(line.post("/bind", a_bind(pod, "n1")))
            await hold.reached()
            stopping = asyncio.create_task(service.stop())
            await until(service.not_ready)
            hold.release()

            assert (await answer).json == {"Error": ""}
            assert await stopping == 0
        assert node_of(cluster.api, "p") == "n1"


async def test_a_port_without_client_certificates_can_be_configured(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        service = await cluster.start_extender(GPULOOM_EXTENDER_CLIENT_CERTIFICATE="false")
        await ready(service)
        pod = add_pod(cluster.api, "p")

        async with a_line(https_port(service), showing_nothing(tmp_path)) as line:
            chosen = await schedule(line, pod, "n1")

        assert chosen == "n1"


async def schedule(line: Line, pod: JsonObject, *names: str, tries: int = 1) -> str:
    """What kube-scheduler does with a pod: filter, prioritize, bind to the best; empty if nothing fits."""
    for _ in range(tries):
        fitting = (await line.post("/filter", a_call(pod, *names))).json["NodeNames"]
        if not fitting:
            return ""
        scores = (await line.post("/prioritize", a_call(pod, *fitting))).json
        best = max(scores, key=lambda entry: entry["Score"])["Host"]
        if not (await line.post("/bind", a_bind(pod, best))).json["Error"]:
            return str(best)
    return ""


async def filtered_to(line: Line, pod: JsonObject, names: list[str]) -> None:
    """Return when a filter lets exactly these nodes through."""
    async with asyncio.timeout(PATIENCE_S):
        while (await line.post("/filter", a_call(pod, "n1"))).json["NodeNames"] != names:
            pass


async def refusal(cluster: Cluster, service: Service, pod: JsonObject) -> str:
    answer = await cluster.ask(service, "filter", a_call(pod, "n1"))
    assert answer.status == 503
    return answer.body.decode()


def a_call(pod: JsonObject, *names: str) -> JsonObject:
    return {"Pod": pod, "NodeNames": list(names)}


def a_bind(pod: JsonObject, node: str) -> JsonObject:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def uid_of_node(cluster: Cluster, name: str) -> str:
    return str(cluster.api.store.get("nodes", name)["metadata"]["uid"])


def capacity_epoch(cluster: Cluster, name: str) -> str:
    annotations = cluster.api.store.get("nodes", name)["metadata"].get("annotations") or {}
    return str(annotations.get(ANNOTATION_CAPACITY_EPOCH, ""))
