"""Kubernetes in the model: pods with versions, Bindings with preconditions, and a log for watchers."""

from copy import deepcopy

from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import PodBinding
from gpuloom.kube.objects import resource_version_of, uid_of
from gpuloom.names import ANNOTATION_EPOCH
from tests.unit.scheduler_extender.builders import JsonObject
from tests.unit.scheduler_extender.model.holds import HoldObjects


class ApiServer:
    """All pods are in one namespace. `log` is what a watch shows, in order."""

    def __init__(self) -> None:
        self.pods: dict[str, JsonObject] = {}
        self.holds = HoldObjects()
        self.log: list[Change] = []
        self.guarded: set[str] = set()
        """Names of pods that a webhook of somebody else lets nobody annotate."""
        self.history = 0
        """Which one this is: every restore of a backup begins another."""
        self.backup: tuple[dict[str, JsonObject], int] | None = None
        self._held: dict[str, JsonObject] = {}
        self._version = 0

    def back_up(self) -> None:
        self.backup = deepcopy(self.pods), self._version
        self._held = deepcopy(self.holds.objects)

    def restore(self) -> None:
        """Nothing of it shows in any watch: the version is below what everybody has seen."""
        assert self.backup is not None
        self.pods, self._version = deepcopy(self.backup[0]), self.backup[1]
        self.holds.restore(self._held)
        self.history += 1

    def create(self, pod: JsonObject) -> JsonObject:
        name: str = pod["metadata"]["name"]
        assert name not in self.pods
        return self._commit(name, None, deepcopy(pod))

    def get(self, name: str) -> JsonObject:
        if name not in self.pods:
            raise NotFoundError(f"no pod {name}")
        return self.pods[name]

    def touch(self, name: str, annotation: str = "note") -> None:
        """A write that changes nothing but the version."""
        changed = deepcopy(self.pods[name])
        changed["metadata"]["annotations"][annotation] = str(self._version)
        self._commit(name, self.pods[name], changed)

    def stamp(self, name: str) -> None:
        if name in self.guarded:
            raise NotAllowedError("denied by a webhook")
        self.touch(name, ANNOTATION_EPOCH)

    def resize(self, name: str) -> None:
        """It asks for a core more."""
        changed = deepcopy(self.pods[name])
        for amounts in changed["spec"]["containers"][0]["resources"].values():
            amounts["cpu"] = str(int(amounts["cpu"]) + 1)
        self._commit(name, self.pods[name], changed)

    def begin_delete(self, name: str) -> None:
        changed = deepcopy(self.pods[name])
        changed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._commit(name, self.pods[name], changed)

    def nominate(self, name: str, node: str) -> None:
        """Promise the pod this node; with no name, take the promise back."""
        changed = deepcopy(self.pods[name])
        changed["status"]["nominatedNodeName"] = node
        self._commit(name, self.pods[name], changed)

    def refuse(self, name: str) -> None:
        """kube-scheduler says that it found no node for the pod."""
        changed = deepcopy(self.pods[name])
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        changed["status"]["conditions"] = [unscheduled]
        self._commit(name, self.pods[name], changed)

    def end(self, name: str, phase: str) -> None:
        """The kubelet reports its end."""
        self.show(name, phase, "terminated")

    def show(self, name: str, phase: str, state: str) -> None:
        """Its status has this phase, and its container this state; none if its kubelet has said nothing."""
        changed = deepcopy(self.pods[name])
        changed["status"] |= {"phase": phase, "startTime": None, "containerStatuses": []}
        if state:
            statuses = [{"name": "main", "state": {state: {}}}]
            changed["status"] |= {"startTime": "2026-01-01T00:00:00Z", "containerStatuses": statuses}
        self._commit(name, self.pods[name], changed)

    def delete(self, name: str) -> None:
        self._version += 1
        self.log.append(Change(self.pods.pop(name), None))

    def bind(self, binding: PodBinding) -> JsonObject:
        return self._commit(binding.pod, self.get(binding.pod), self.would_bind(binding))

    def would_bind(self, binding: PodBinding) -> JsonObject:
        """The pod as this Binding would make it. ConflictError, NotFoundError: it would not be applied."""
        pod = self.get(binding.pod)
        if binding.uid not in (None, uid_of(pod)):
            raise ConflictError("another UID")
        if binding.resource_version not in (None, resource_version_of(pod)):
            raise ConflictError("another version")
        if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
            raise ConflictError("bound already, or going")
        bound = deepcopy(pod)
        bound["spec"]["nodeName"] = binding.node
        bound["metadata"]["annotations"].update(binding.annotations)
        return bound

    def _commit(self, name: str, old: JsonObject | None, new: JsonObject) -> JsonObject:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        self.pods[name] = new
        self.log.append(Change(old, new))
        return new
