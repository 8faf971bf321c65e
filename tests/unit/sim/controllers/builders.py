"""Workloads and pods for the tests of the simulated controllers, and a store that obeys their decisions."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.sim.controllers.decision import Action, Create, Delete
from gpuloom.sim.kubeapi.objects.patches import merge

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_job(**spec: Any) -> JsonObject:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "train:1"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team", "uid": "job", "resourceVersion": "1"},
        "spec": {"template": template, "backoffLimit": 6, "parallelism": 1, **spec},
    }


class World:
    """Does what controllers decide to one workload and its pods; every write shows at once."""

    def __init__(self, workload: JsonObject) -> None:
        self.workload: JsonObject | None = workload
        self.pods: dict[str, JsonObject] = {}
        self._numbers = count(1)

    def listed(self) -> Sequence[JsonObject]:
        return tuple(self.pods.values())

    def obey(self, action: Action) -> None:
        if isinstance(action, Create):
            uid = f"pod-{next(self._numbers)}"
            metadata = {
                **action.obj["metadata"],
                "name": uid,
                "uid": uid,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            self.pods[uid] = {**action.obj, "metadata": metadata, "status": {"phase": "Pending"}}
        elif isinstance(action, Delete):
            if action.uid in self.pods:
                self.delete_pod(action.uid)
            else:
                self.workload = None
        elif action.resource.kind == "Pod":
            self.pods[action.name] = merge(self.pods[action.name], action.body)
            self._let_go(action.name)
        else:
            self.workload = merge(self.workload, action.body)

    def delete_pod(self, uid: str) -> None:
        mark = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        self.pods[uid] = merge(self.pods[uid], mark)
        self._let_go(uid)

    def end_pod(self, uid: str, phase: str) -> None:
        self.pods[uid] = merge(self.pods[uid], {"status": {"phase": phase}})

    def running(self) -> list[str]:
        return sorted(
            uid_of(pod)
            for pod in self.pods.values()
            if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]
        )

    def _let_go(self, uid: str) -> None:
        metadata = self.pods[uid]["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self.pods[uid]
