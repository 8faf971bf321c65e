"""The whole extender on an API server that is restored from a backup."""

from pathlib import Path

import pytest

from gpuloom.names import ANNOTATION_EPOCH
from gpuloom.sim.kubeapi import SimKubeApi
from tests.mesh.node_agent.builders import Service
from tests.mesh.scheduler_extender.kubernetes import JsonObject, add_pod, devices_of, node_of, the_pod
from tests.mesh.scheduler_extender.mesh import Cluster, a_cluster, ready
from tests.mesh.scheduler_extender.replicas import add_own_pod, of_replica, serves
from tests.mesh.waiting import until

ALONE = {"GPULOOM_EXTENDER_LEADER_ELECTION": "false"}


async def test_a_leader_takes_over_again_and_keeps_the_devices_of_what_it_had_bound(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=2)
        pod = add_pod(cluster.api, "p")
        extender = await cluster.start_extender(**ALONE)
        await ready(extender)
        backup = cluster.api.snapshot()
        before = epoch_of(cluster.api, "p")
        assert await bind(cluster, extender, pod) == ""
        lost = devices_of(cluster.api, "p")
        # Versions that have caught up before the extender asks hide a restore; a lease would show it.
        for number in range(200):
            add_pod(cluster.api, f"lost-{number}", {"cpu": "1"})
        await until(lambda: ledger_has(extender, "observed", 1))

        await cluster.api.restore(backup)
        await until(lambda: epoch_of(cluster.api, "p") != before)
        other = add_pod(cluster.api, "other")
        await ready(extender)

        assert node_of(cluster.api, "p") == ""
        assert await bind(cluster, extender, other) == ""
        assert devices_of(cluster.api, "other") != lost
        assert "may still do so" in await bind(cluster, extender, pod)


@pytest.mark.parametrize("catches_up", [False, True])
async def test_a_standby_that_outlives_the_leader_serves_the_restored_state(
    tmp_path: Path, catches_up: bool
) -> None:
    """Also if so much was written since the restore that versions are again where they were."""
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=1)
        for name in ("first", "second"):
            add_own_pod(cluster.api, name)
        pod = add_pod(cluster.api, "p")
        first = await cluster.start_extender(**of_replica("first"))
        await until(lambda: serves(first))
        backup, before = cluster.api.snapshot(), epoch_of(cluster.api, "p")
        second = await cluster.start_extender(**of_replica("second"))
        await ready(second)
        assert await bind(cluster, first, pod) == ""
        await until(lambda: all(ledger_has(one, "observed", 1) for one in (first, second)))
        renewed = renewals(cluster.api)
        await until(lambda: renewals(cluster.api) - renewed)

        await cluster.api.restore(backup)
        for number in range(300 if catches_up else 0):
            add_pod(cluster.api, f"new-{number}", {"cpu": "1"})
        await until(lambda: epoch_of(cluster.api, "p") != before, timeout_s=30.0)
        await until(lambda: serves(first) or serves(second), timeout_s=30.0)

        leader = second if serves(second) else first
        assert ledger_has(leader, "observed", 0)
        assert ledger_has(leader, "releasing", 1)
        assert "may still do so" in await bind(cluster, leader, pod)


def renewals(api: SimKubeApi) -> set[str]:
    """When the lease was last renewed."""
    return {lease["spec"]["renewTime"] for lease in api.store.select("leases.coordination.k8s.io")}


def ledger_has(service: Service, state: str, count: int) -> bool:
    labels = {"state": state}
    found = service.app.registry.get_sample_value("gpuloom_scheduler_extender_ledger_entries", labels)
    return found == count


async def bind(cluster: Cluster, service: Service, pod: JsonObject) -> str:
    metadata = pod["metadata"]
    call = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
    answer = await cluster.ask(service, "bind", call | {"Node": "n1"})
    return str(answer.json["Error"])


def epoch_of(api: SimKubeApi, name: str) -> str:
    return str(the_pod(api, name)["metadata"].get("annotations", {}).get(ANNOTATION_EPOCH, ""))
