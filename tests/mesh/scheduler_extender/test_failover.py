"""Several extenders: one leads and serves, the others are warm, and one of them takes over."""

import asyncio
import signal
from pathlib import Path

from gpuloom.names import ANNOTATION_EPOCH
from tests.mesh.scheduler_extender.kubernetes import JsonObject, add_pod, node_of, owners, the_pod
from tests.mesh.scheduler_extender.mesh import Cluster, a_cluster, ready
from tests.mesh.scheduler_extender.replicas import (
    NAMESPACE,
    SERVES,
    SHORT_LEASE,
    STANDS_BY,
    a_process,
    add_own_pod,
    labelled,
    of_replica,
    serves,
    start_replica,
    until_it_says,
)
from tests.mesh.waiting import until

LEASES = r"/leases/"
MANY = 500
# How long it takes is measured in the cluster tests; this only ends a wait that would never end.
FAILOVER_S = 60.0


async def test_only_the_leader_serves_and_only_its_pod_is_in_the_service(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        pod = add_pod(cluster.api, "p")
        first = await start_replica(cluster, "first")
        await until(lambda: serves(first))

        second = await start_replica(cluster, "second")
        await ready(second)
        async with cluster.line(second) as line:
            refused = await line.post("/filter", a_call(pod))
            closed = await line.is_closed()
        answer = await cluster.ask(first, "filter", a_call(pod))
        await until(lambda: labelled(cluster.api))

        assert refused.status == 503
        assert refused.body.decode().startswith("GPULoom is not ready: standby; leader is first-")
        assert closed
        assert answer.json["NodeNames"] == ["n1"]
        assert labelled(cluster.api) == ["first"]
        assert not serves(second)


async def test_a_leader_that_stops_hands_over_at_once(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        pod = add_pod(cluster.api, "p")
        first = await start_replica(cluster, "first")
        await until(lambda: labelled(cluster.api) == ["first"])
        second = await start_replica(cluster, "second")
        await ready(second)
        before = epoch_of(cluster, "p")

        stopped = await first.stop()
        await until(lambda: labelled(cluster.api) == ["second"])
        answer = await cluster.ask(second, "bind", a_bind(pod))

        assert stopped == 0
        assert answer.json == {"Error": ""}
        assert node_of(cluster.api, "p") == "n1"
        assert epoch_of(cluster, "p") != before


async def test_a_standby_takes_over_a_cluster_without_pods(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        first = await start_replica(cluster, "first")
        await until(lambda: serves(first))
        second = await start_replica(cluster, "second")
        await ready(second)

        await first.stop()

        await until(lambda: serves(second))


async def test_a_label_that_a_dead_leader_left_is_removed(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        add_own_pod(cluster.api, "dead", leads=True)
        add_own_pod(cluster.api, "leader-of-others", app="mig-controller", leads=True)
        await start_replica(cluster, "first")

        await until(lambda: labelled(cluster.api) == ["first", "leader-of-others"])


async def test_a_leader_that_can_not_renew_its_lease_ends(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        first = await start_replica(cluster, "first", SHORT_LEASE)
        await until(lambda: labelled(cluster.api) == ["first"])

        cluster.api.faults.fail_next("*", LEASES, 500, times=1000)
        code = await first.task

        assert code == 1
        assert labelled(cluster.api) == []


async def test_the_lease_is_not_taken_by_one_that_is_not_warm(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.world.nodes_synced = False
        first = await start_replica(cluster, "first")

        await until(lambda: "no device facts" in "".join(first.not_ready()))

        assert not cluster.api.store.select("leases.coordination.k8s.io")


async def test_without_a_pod_of_its_own_a_new_leader_lists_afresh(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        pod = add_pod(cluster.api, "p")
        settings = of_replica("unused")
        for name in ("GPULOOM_POD_NAME", "GPULOOM_POD_NAMESPACE"):
            del settings[name]
        settings["GPULOOM_EXTENDER_LEASE_NAMESPACE"] = NAMESPACE
        first = await cluster.start_extender(**settings)
        await until(lambda: serves(first))
        second = await cluster.start_extender(**settings)
        await ready(second)

        await first.stop()
        await until(lambda: serves(second))
        answer = await cluster.ask(second, "bind", a_bind(pod))

        assert answer.json == {"Error": ""}


async def test_a_killed_leader_is_replaced_with_500_unbound_pods(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        pods = [add_pod(cluster.api, f"p{number}") for number in range(MANY)]
        async with a_process(cluster, "first", **of_replica("first")) as first:
            await until_it_says(first, a_call(pods[0]), SERVES)
            async with a_process(cluster, "second", **of_replica("second")) as second:
                await until_it_says(second, a_call(pods[0]), STANDS_BY)

                first.signal(signal.SIGKILL)
                await until_it_says(second, a_call(pods[0]), SERVES, FAILOVER_S)
                answer = await second.ask("bind", a_bind(pods[0]))

        assert answer.json == {"Error": ""}
        assert len({epoch_of(cluster, f"p{number}") for number in range(1, MANY)}) == 1


async def test_a_binding_of_a_stopped_leader_that_comes_late_is_refused(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        held, other = add_pod(cluster.api, "held"), add_pod(cluster.api, "other")
        failpoint = {"GPULOOM_FAILPOINTS": "bind-before-post=stop", "GPULOOM_FAILPOINTS_ALLOWED": "true"}
        async with a_process(cluster, "first", **of_replica("first"), **failpoint) as first:
            await until_it_says(first, a_call(held), SERVES)
            async with a_process(cluster, "second", **of_replica("second")) as second:
                late = asyncio.create_task(first.ask("bind", a_bind(held)))
                await until(first.is_stopped)

                await until_it_says(second, a_call(other), SERVES)
                given = await second.ask("bind", a_bind(other))
                first.signal(signal.SIGCONT)
                refused = await late
                code = await first.process.wait()

        assert given.json == {"Error": ""}
        # The pod was stamped meanwhile. A second try finds the lease gone; none is made if the process was
        # stopped for so long that too little of the bind's own time is left.
        assert any(said in refused.json["Error"] for said in ("be sure to be the leader", "409 Conflict"))
        assert code == 1
        assert node_of(cluster.api, "held") == ""
        assert list(owners(cluster.api).values()) == [["other"]]


def a_call(pod: JsonObject) -> JsonObject:
    return {"Pod": pod, "NodeNames": ["n1"]}


def a_bind(pod: JsonObject) -> JsonObject:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": "n1",
    }


def epoch_of(cluster: Cluster, name: str) -> str:
    return str((the_pod(cluster.api, name)["metadata"].get("annotations") or {}).get(ANNOTATION_EPOCH, ""))
