"""Asking pods to leave by the Eviction API, telling them before, and Events about it."""

from datetime import datetime

from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.errors import DisruptionBudgetError
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import PODS
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_CHECKPOINT_REQUESTED


class KubernetesEvictions:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def evict(self, pod: PodRef) -> str:
        """The UID is a precondition: another pod of this name stays."""
        try:
            await self._client.evict(pod.namespace, pod.name, DeleteOptions(uid=pod.uid), timeout_s=3.0)
        except DisruptionBudgetError as error:
            return f"a PodDisruptionBudget forbids it: {error}"
        except NotFoundError:
            return ""
        except ConflictError:
            # The UID differs: ours is gone.
            return ""
        return ""

    async def request_checkpoint(self, pod: PodRef, at: datetime) -> None:
        notes = {ANNOTATION_CHECKPOINT_REQUESTED: format_time(at)}
        patch = {"metadata": {"uid": pod.uid, "annotations": notes}}
        await self._client.patch(PODS, pod.name, pod.namespace, patch)


class PodAnnouncer:
    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def tell(self, pod: JsonObject, reason: str, message: str, *, warning: bool = False) -> None:
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata_of(pod)}
        if warning:
            self._recorder.warning(about, reason, message)
        else:
            self._recorder.normal(about, reason, message)
