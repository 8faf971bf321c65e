"""The real mesh in real processes: a pod is deleted by force, and its containers outlive it on its GPUs."""

from pathlib import Path

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import RESOURCE_NVIDIA_GPU
from gpuloom.sim.embedded import open_mesh
from gpuloom.sim.machines.journal import JOURNAL_FILE, read_journal
from gpuloom.sim.mesh.plan import MeshOptions
from tests.scenarios.test_mesh_survives_kills import CLOCK, NAMESPACE, Cluster, a_pod

GRACE_S = 8


def an_idle_pod_that_does_not_heed_sigterm(cards: int, node: str) -> JsonObject:
    pod = a_pod("lingers", RESOURCE_NVIDIA_GPU, cards, node)
    pod["metadata"]["annotations"] = {"sim.gpuloom.dev/sigterm": "ignored", "sim.gpuloom.dev/load": "0"}
    pod["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    return pod


async def test_cards_of_a_force_deleted_pod_are_given_when_its_containers_are_gone(
    run_directory: Path,
) -> None:
    options = MeshOptions(nodes=2, seed=1, pods_per_minute=0.01, max_publish_delay_s=0.5)
    async with open_mesh(options, run_directory, CLOCK) as mesh:
        await mesh.start()
        async with KubeClient(KubeAccess(mesh.plan.api_url), CLOCK) as client:
            cluster = Cluster(mesh, client)
            node = cluster.node_of(NodeMode.NVIDIA)
            cards = next(machine.gpu_count for machine in mesh.plan.machines if machine.node == node)
            await cluster.run_pods(an_idle_pod_that_does_not_heed_sigterm(cards, node))

            await client.delete(PODS, "lingers", NAMESPACE, DeleteOptions(grace_period_s=0))
            await cluster.run_pods(a_pod("next", RESOURCE_NVIDIA_GPU, cards, node))

    entries = read_journal(mesh.plan.directory.machines / node / JOURNAL_FILE).entries
    told = [(entry.kind.value, entry.pod.name) for entry in entries if entry.pod.name in ("lingers", "next")]
    assert told[:3] == [("start", "lingers"), ("end", "lingers"), ("start", "next")]
    assert mesh.audit().findings == ()
