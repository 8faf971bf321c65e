"""The label by which the Service finds the leader's pod."""

from gpuloom.errors import NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, ObjectKey, key_of, metadata_of, uid_of
from gpuloom.kube.resources import PODS
from gpuloom.names import LABEL_LEADER
from services.scheduler_extender.adapters.pod_informer import LABEL_VALUE, LEADERS

_TIMEOUT_S = 1.0
_LABEL_NAME = "app.kubernetes.io/name"


class NoLeaderLabel:
    """Outside a cluster there is no Service to be found by."""

    async def put(self) -> None:
        return

    async def remove(self) -> None:
        return


class KubernetesLeaderLabel:
    """Reads from the informer, which must index the label, so that a look costs no request."""

    def __init__(self, client: KubeClient, pods: Informer, own_pod: ObjectKey) -> None:
        self._client = client
        self._pods = pods
        self._own_pod = own_pod

    async def put(self) -> None:
        namespace, name = self._own_pod
        labelled = self._pods.by_index(LEADERS, namespace)
        own = self._pods.get(name, namespace)
        for pod in labelled:
            # Two pods with the label would share kube-scheduler's calls. Other services have leaders too.
            if key_of(pod) != self._own_pod and own is not None and _application(pod) == _application(own):
                await self._write(key_of(pod), None, uid_of(pod))
        if all(key_of(pod) != self._own_pod for pod in labelled):
            await self._write(self._own_pod, LABEL_VALUE)

    async def remove(self) -> None:
        await self._write(self._own_pod, None)

    async def _write(self, pod: ObjectKey, value: str | None, uid: str = "") -> None:
        """The UID is a precondition: a pod made anew under that name may be the leader's own successor."""
        namespace, name = pod
        metadata: JsonObject = {"labels": {LABEL_LEADER: value}}
        if uid:
            metadata["uid"] = uid
        try:
            await self._client.patch(PODS, name, namespace, {"metadata": metadata}, timeout_s=_TIMEOUT_S)
        except NotFoundError:
            # Gone, and its label with it.
            return


def _application(pod: JsonObject) -> str:
    labels = metadata_of(pod).get("labels")
    return str(labels.get(_LABEL_NAME, "")) if isinstance(labels, dict) else ""
