"""The pods that ask for GPUs, from an informer, as workloads; and those that went lately."""

from collections import OrderedDict
from dataclasses import replace

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.resources import JOBS, PODS
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import Clock
from services.optimizer.core.workload import Workload, workload_of

MAX_GONE = 5_000

_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences")
_SPEC = ("nodeName", "overhead", "resources", "runtimeClassName")
_CONTAINER = ("name", "image", "command", "args", "resources", "ports", "restartPolicy")
_WORDS = ("command", "args")
_MAX_WORDS = 32
_MAX_TEXT = 4096
_ANNOTATIONS = ("gpu-autoscaler.io/", "gpuloom.dev/")


class Pods:
    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self.informer = Informer(client, PODS, clock, InformerOptions(transform=trimmed))
        self.informer.on_change(self._hear)
        self._by_uid: dict[str, Workload] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._gone: OrderedDict[str, Workload] = OrderedDict()

    def find(self, uid: str) -> Workload | None:
        """Also one that was deleted lately: its last windows come after it."""
        return self._by_uid.get(uid) or self._gone.get(uid)

    def named(self, pod: PodRef) -> Workload:
        """Raise NotFoundError if there is no such pod that asks for GPUs."""
        uid = pod.uid or self._uids.get((pod.namespace, pod.name), "")
        found = self._by_uid.get(uid)
        if found is None or (pod.namespace, pod.name) != (found.pod.namespace, found.pod.name):
            raise NotFoundError(f"there is no pod {pod.namespace}/{pod.name} that asks for GPUs")
        return found

    def all(self) -> list[Workload]:
        return list(self._by_uid.values())

    async def manifest(self, workload: Workload) -> JsonObject | None:
        """The Job's or the bare pod's own; None if it is gone or can't be read."""
        job = workload.owner.kind == "Job"
        if workload.owner.kind and not job:
            return None
        resource, name = (JOBS, workload.owner.name) if job else (PODS, workload.pod.name)
        try:
            found = await self._client.get(resource, name, workload.pod.namespace)
        except GpuloomError:
            return None
        return {"apiVersion": resource.api_version, "kind": resource.kind, **found}

    def _hear(self, change: Change) -> None:
        if change.old is not None and (change.new is None or uid_of(change.old) != uid_of(change.new)):
            self._drop(uid_of(change.old))
        if change.new is not None:
            workload = workload_of(change.new)
            if workload is not None:
                self._by_uid[workload.pod.uid] = workload
                self._uids[workload.pod.namespace, workload.pod.name] = workload.pod.uid

    def _drop(self, uid: str) -> None:
        workload = self._by_uid.pop(uid, None)
        if workload is None:
            return
        name = (workload.pod.namespace, workload.pod.name)
        if self._uids.get(name) == uid:
            del self._uids[name]
        self._gone[uid] = replace(workload, ended=True)
        while len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)


def trimmed(pod: JsonObject) -> JsonObject:
    """What is read of a pod: ten thousand whole ones would be most of the memory."""
    metadata, spec = metadata_of(pod), pod.get("spec") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(_ANNOTATIONS)
        and key != "gpuloom.dev/allocation"
        and isinstance(value, str)
        and len(value) <= _MAX_TEXT
    }
    if annotations:
        kept["annotations"] = annotations
    return {
        "metadata": kept,
        "spec": {
            **{key: spec[key] for key in _SPEC if key in spec},
            **{
                kind: [_container(each) for each in spec[kind]]
                for kind in ("containers", "initContainers")
                if spec.get(kind)
            },
        },
        "status": {"phase": (pod.get("status") or {}).get("phase", "")},
    }


def _container(container: JsonObject) -> JsonObject:
    kept = {key: container[key] for key in _CONTAINER if key in container}
    for key in _WORDS:
        if isinstance(kept.get(key), list):
            # What it runs is told by its first words; a script may be as long as an object can be.
            kept[key] = [str(word)[:_MAX_TEXT] for word in kept[key][:_MAX_WORDS]]
    return kept
