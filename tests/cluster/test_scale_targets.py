"""Kinds of targets on a real API server, read and scaled by the autoscaler's own account."""

from typing import Any

import pytest

from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import STATEFULSETS, Resource
from gpuloom.model.policies import ScaleTarget
from gpuloom.runtime.clock import SystemClock, deadline
from services.autoscaler.inference.adapters.targets import Targets
from tests.cluster.contract_api import CRDS
from tests.cluster.shared import NAMESPACE, SharedControlPlane

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()
GROUP = "leaderworkerset.x-k8s.io"
LEADER_WORKER_SETS = Resource(GROUP, "v1", "leaderworkersets", "LeaderWorkerSet")


def leader_worker_sets() -> dict[str, Any]:
    """As much of that definition as scaling needs."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.hpaPodSelector",
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        "subresources": {"status": {}, "scale": scale},
    }
    names = {"plural": "leaderworkersets", "kind": "LeaderWorkerSet"}
    return {
        "metadata": {
            "name": f"leaderworkersets.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def a_stateful_set() -> dict[str, Any]:
    labels = {"app": "llm"}
    return {
        "metadata": {"name": "llm", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "serviceName": "llm",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "x"}]},
            },
        },
    }


async def is_served(client: KubeClient) -> bool:
    try:
        return bool(await client.served(f"{GROUP}/v1"))
    except NotFoundError:
        return False


async def test_stateful_sets_and_leader_worker_sets_are_scaled_by_our_account(
    shared_control_plane: SharedControlPlane,
) -> None:
    kubeconfig = await shared_control_plane.plane.service_account_kubeconfig(NAMESPACE, "gpuloom-autoscaler")
    async with shared_control_plane.client() as admin, shared_control_plane.client(kubeconfig) as ours:
        await admin.create(STATEFULSETS, a_stateful_set())
        await admin.create(CRDS, leader_worker_sets())
        targets = Targets(ours)
        group = {"metadata": {"name": "llm", "namespace": NAMESPACE}, "spec": {"replicas": 1}}
        try:
            async with deadline(CLOCK, 60.0):
                while not await is_served(admin):
                    await CLOCK.sleep(0.2)
            await admin.create(LEADER_WORKER_SETS, group)
            found = []
            for target in (
                ScaleTarget("StatefulSet", "llm"),
                ScaleTarget("LeaderWorkerSet", "llm", f"{GROUP}/v1"),
            ):
                before = await targets.read(target, NAMESPACE)
                await targets.write(before, 3, 5.0)
                after = await targets.read(target, NAMESPACE)
                found.append((before.replicas, after.replicas, await targets.object(after) is not None))
            with pytest.raises(InvalidRequestError, match="has no scale subresource"):
                await targets.read(ScaleTarget("ConfigMap", "llm", "v1"), NAMESPACE)
        finally:
            await admin.delete(STATEFULSETS, "llm", NAMESPACE)
            await admin.delete(CRDS, f"leaderworkersets.{GROUP}")

    assert found == [(1, 3, True), (1, 3, True)]
