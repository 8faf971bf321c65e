"""Binding, stamping, touching and reading through the Kubernetes API."""

from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.names import ANNOTATION_CAPACITY_EPOCH, ANNOTATION_EPOCH
from gpuloom.runtime.failpoints import Failpoints

BIND_BEFORE_POST = "bind-before-post"
"""A failpoint: the devices are chosen and held and the lease was checked; the Binding is not sent yet."""


class KubernetesPods:
    """Pods from the informer, and directly where the newest state matters."""

    def __init__(self, informer: Informer, client: KubeClient) -> None:
        self._informer = informer
        self._client = client

    def by_uid(self, uid: str) -> JsonObject | None:
        return self._informer.by_uid(uid)

    async def read(self, namespace: str, name: str) -> JsonObject:
        return await self._client.get(PODS, name, namespace, timeout_s=3.0)


class KubernetesMarker:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def stamp(self, namespace: str, name: str, uid: str, epoch: str) -> None:
        """The UID in the patch is a precondition: another pod of this name is left alone."""
        patch = {"metadata": {"uid": uid, "annotations": {ANNOTATION_EPOCH: epoch}}}
        try:
            await self._client.patch(PODS, name, namespace, patch)
        except ConflictError as error:
            if uid_of(await self._client.get(PODS, name, namespace)) != uid:
                raise NotFoundError(f"pod {namespace}/{name} was replaced") from error
            raise

    async def touch(self, node_name: str, epoch: str) -> None:
        patch = {"metadata": {"annotations": {ANNOTATION_CAPACITY_EPOCH: epoch}}}
        await self._client.patch(NODES, node_name, None, patch)


class KubernetesBinder:
    def __init__(self, client: KubeClient, failpoints: Failpoints) -> None:
        self._client = client
        self._failpoints = failpoints

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        await self._failpoints.reach(BIND_BEFORE_POST)
        await self._client.bind(binding, timeout_s=timeout_s)
