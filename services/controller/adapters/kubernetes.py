"""The controller's Kubernetes: what it observes, and its writes, which end with its lease."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gpuloom.errors import NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.resources import GPU_WORKLOADS, JOBS, NODES, PODS
from gpuloom.names import ANNOTATION_RECOMMENDATION
from gpuloom.runtime.clock import Clock
from services.controller.core.manifests import GPU_RESOURCE_PREFIXES, LABEL_WORKLOAD, Image
from services.controller.core.nodes import GpuNode, asked_gpus, gpu_node, promised_gpus
from services.controller.core.waste import GpuPod, gpu_pod

_WRITE_TIMEOUT_S = 5.0
_ENDED = frozenset({"Succeeded", "Failed"})

ImageOf = Callable[[str], Image | None]


class KubernetesWorkloads:
    """Writes as long as it leads."""

    def __init__(self, client: KubeClient, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership

    async def create_job(self, manifest: JsonObject) -> JsonObject | None:
        try:
            return await self._client.create(JOBS, manifest, timeout_s=self._timeout_s())
        except AlreadyExistsError:
            return None

    async def read_job(self, namespace: str, name: str) -> JsonObject | None:
        try:
            return await self._client.get(JOBS, name, namespace)
        except NotFoundError:
            return None

    async def delete_job(self, namespace: str, name: str, uid: str | None) -> None:
        options = DeleteOptions(uid=uid, propagation="Background")
        try:
            await self._client.delete(JOBS, name, namespace, options, timeout_s=self._timeout_s())
        except NotFoundError:
            return

    async def patch(self, workload: JsonObject, patch: JsonObject) -> JsonObject:
        namespace, name = key_of(workload)
        return await self._client.patch(GPU_WORKLOADS, name, namespace, patch, timeout_s=self._timeout_s())

    async def patch_status(self, workload: JsonObject, patch: JsonObject) -> JsonObject:
        namespace, name = key_of(workload)
        return await self._client.patch_status(
            GPU_WORKLOADS, name, namespace, patch, timeout_s=self._timeout_s()
        )

    def _timeout_s(self) -> float:
        return self._leadership.write_timeout_s(_WRITE_TIMEOUT_S)


class KubernetesCluster:
    """Informers of workloads, their Jobs and pods, all bound pods and, where it may read them, nodes.

    `namespace` None: all namespaces. `selector` chooses the workloads of this controller among several.
    """

    def __init__(
        self, client: KubeClient, clock: Clock, namespace: str | None, selector: str, image_of: ImageOf
    ) -> None:
        ours = Selection(namespace, LABEL_WORKLOAD)
        self.workloads = Informer(
            client, GPU_WORKLOADS, clock, InformerOptions(selection=Selection(namespace, selector))
        )
        self.jobs = Informer(
            client, JOBS, clock, InformerOptions(selection=ours, indexes={"owner": _controllers})
        )
        self.pods = Informer(
            client, PODS, clock, InformerOptions(selection=ours, indexes={"owner": _controllers})
        )
        self._gives_shares: bool | None = None
        """Worked out once, until a node changes; with it how much memory GPUs have."""
        self._gpu_memory_mib = frozenset[int]()
        self._nodes = None
        if namespace is None:
            self._nodes = Informer(client, NODES, clock, InformerOptions(transform=_trimmed_node))
            self._nodes.on_change(self._node_changed)
        bound = Selection(namespace, field_selector="spec.nodeName!=")
        self._bound = Informer(
            client,
            PODS,
            clock,
            InformerOptions(selection=bound, transform=_trimmed_pod, indexes={"node": _node_of}),
        )
        self._image_of = image_of

    @property
    def informers(self) -> tuple[Informer, ...]:
        found = (self.workloads, self.jobs, self.pods, self._nodes, self._bound)
        return tuple(one for one in found if one is not None)

    def synced(self) -> bool:
        return all(informer.synced for informer in self.informers)

    def jobs_of(self, uid: str) -> Sequence[JsonObject]:
        return self.jobs.by_index("owner", uid)

    def pods_of(self, workload_uid: str) -> Sequence[JsonObject]:
        return [pod for job in self.jobs_of(workload_uid) for pod in self.pods.by_index("owner", uid_of(job))]

    def gives_shares(self) -> bool:
        if self._gives_shares is None:
            nodes = [] if self._nodes is None else [gpu_node(node, 0) for node in self._nodes.objects()]
            giving = [node.gives_shares for node in nodes if node.ready and node.gpus]
            self._gives_shares = bool(giving) and all(giving)
            self._gpu_memory_mib = frozenset(node.memory_mib for node in nodes if node.ready) - {0}
        return self._gives_shares

    def gpu_memory_mib(self) -> frozenset[int]:
        self.gives_shares()
        return self._gpu_memory_mib

    def nodes(self, made: Sequence[JsonObject] = ()) -> Sequence[GpuNode]:
        if self._nodes is None:
            return ()
        jobs = {key_of(job): job for job in (*made, *self.jobs.objects())}
        bound = (pod for pod in self.pods.objects() if (pod.get("spec") or {}).get("nodeName"))
        promised = promised_gpus(jobs.values(), Counter(uid for pod in bound for uid in _controllers(pod)))
        found = [
            gpu_node(node, asked_gpus(self._bound.by_index("node", key_of(node)[1])), promised)
            for node in self._nodes.objects()
        ]
        return [node for node in found if node.gpus]

    def gpu_pods(self) -> list[GpuPod]:
        """All on nodes that ask for GPUs and have not ended."""
        return [pod for obj in self._bound.objects() if (pod := gpu_pod(obj)) is not None]

    def _node_changed(self, change: Change) -> None:
        self._gives_shares = None

    def image_of(self, model: str) -> Image | None:
        return self._image_of(model)


def _controllers(obj: JsonObject) -> Sequence[str]:
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return [str(owner.get("uid")) for owner in owners if owner.get("controller")]


def _node_of(pod: JsonObject) -> Sequence[str]:
    ended = (pod.get("status") or {}).get("phase") in _ENDED
    return [] if ended else [str((pod.get("spec") or {}).get("nodeName") or "")]


def _trimmed_node(node: JsonObject) -> JsonObject:
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    ready = [one for one in status.get("conditions") or () if one.get("type") == "Ready"]
    kept = {"capacity": status.get("capacity"), "allocatable": status.get("allocatable")}
    return {
        "metadata": {**_identity(metadata), "labels": metadata.get("labels") or {}},
        "spec": {"unschedulable": (node.get("spec") or {}).get("unschedulable")},
        "status": {**kept, "conditions": [{"type": "Ready", "status": one.get("status")} for one in ready]},
    }


def _trimmed_pod(pod: JsonObject) -> JsonObject:
    """Thousands of them are kept: where, whose, which GPUs they ask for, and what was told of them."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    asked = [
        {name: amount for name, amount in limits.items() if name.startswith(GPU_RESOURCE_PREFIXES)}
        for container in spec.get("containers") or ()
        if (limits := (container.get("resources") or {}).get("limits"))
    ]
    containers = [{"resources": {"limits": limits}} for limits in asked if limits]
    kept = _identity(metadata)
    if containers:
        kept["labels"] = _picked(metadata.get("labels"), (LABEL_WORKLOAD, "pod-template-hash"))
        kept["annotations"] = _picked(metadata.get("annotations"), (ANNOTATION_RECOMMENDATION,))
        owners = [one for one in metadata.get("ownerReferences") or () if one.get("controller")]
        kept["ownerReferences"] = [_picked(one, ("kind", "name", "controller")) for one in owners]
    return {
        "metadata": kept,
        "spec": {"nodeName": spec.get("nodeName"), "containers": containers},
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _picked(values: Mapping[str, object] | None, keys: Sequence[str]) -> dict[str, object]:
    return {key: values[key] for key in keys if key in values} if values else {}


def _identity(metadata: Mapping[str, object]) -> dict[str, object]:
    kept = ("name", "namespace", "uid", "resourceVersion")
    return {key: metadata[key] for key in kept if key in metadata}
