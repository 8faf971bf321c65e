"""Asks pods to leave, by the Eviction API, which heeds PodDisruptionBudgets."""

import logging
from collections.abc import Callable

from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.errors import DisruptionBudgetError, TooManyRequestsError
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import uid_of
from gpuloom.model.node import PodRef
from services.mig_controller.core.movable import reason_to_stay

_log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


class KubeEvictor:
    """`write_timeout_s` bounds an eviction by the lease, and raises NotReadyError without it."""

    def __init__(
        self,
        client: KubeClient,
        pods: Informer,
        recorder: EventRecorder,
        write_timeout_s: Callable[[float], float],
    ) -> None:
        self._client = client
        self._pods = pods
        self._recorder = recorder
        self._write_timeout_s = write_timeout_s

    async def evict(self, pod: PodRef, why: str) -> str:
        obj = self._pods.get(pod.name, pod.namespace)
        if obj is not None and uid_of(obj) == pod.uid:
            stays = reason_to_stay(obj)
            if stays:
                raise NotAllowedError(stays)
        timeout_s = self._write_timeout_s(_TIMEOUT_S)
        options = DeleteOptions(uid=pod.uid)
        try:
            await self._client.evict(pod.namespace, pod.name, options, timeout_s=timeout_s)
        except DisruptionBudgetError:
            return "a PodDisruptionBudget does not allow it now"
        except TooManyRequestsError as error:
            return str(error)
        except (NotFoundError, ConflictError):
            # It is gone, or another pod has its name.
            return ""
        if obj is not None:
            self._recorder.normal({"apiVersion": "v1", "kind": "Pod", **obj}, "MovedToMakeRoom", why)
        _log.info("a pod is asked to leave its slice", extra={"pod": str(pod), "reason": why})
        return ""
