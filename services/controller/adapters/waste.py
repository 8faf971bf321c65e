"""Waste as the optimizer tells it, pods as Kubernetes shows them, and what was recommended in a ConfigMap."""

import logging
from collections.abc import Callable, Sequence

from gpuloom.clients.optimizer import waste
from gpuloom.clients.prometheus import PrometheusClient
from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventKind, EventRecorder
from gpuloom.kube.leadership import Leadership
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import CONFIGMAPS, PODS
from gpuloom.model.optimization import WasteReport
from gpuloom.names import ANNOTATION_RECOMMENDATION
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock
from services.controller.core.waste import GpuPod, Pursuit, pursuits_from_json, pursuits_to_json

CONFIG_MAP, KEY = "gpuloom-recommendations", "recommendations.json"
PING_S = 10.0
_WRITE_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class OptimizerWaste:
    def __init__(self, channel: RpcChannel) -> None:
        self._channel = channel

    async def waste(self, namespace: str | None, min_score: float) -> WasteReport:
        return await waste(self._channel, namespace or "", min_score)


class KubernetesWaste:
    """Writes as long as it leads."""

    def __init__(
        self,
        client: KubeClient,
        leadership: Leadership,
        recorder: EventRecorder,
        pods: Callable[[], Sequence[GpuPod]],
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._recorder = recorder
        self._pods = pods

    def gpu_pods(self) -> Sequence[GpuPod]:
        return self._pods()

    async def tell(self, pod: GpuPod, reason: str, topic: str, message: str) -> None:
        self._timeout_s()
        kind = EventKind.NORMAL if reason.endswith("Saved") else EventKind.WARNING
        namespace, name = pod.key
        metadata = {"namespace": namespace, "name": name, "uid": pod.uid}
        about = {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata}
        await self._recorder.write_once(about, kind, reason, (topic, message))

    async def annotate(self, pod: GpuPod, recommendation: str) -> None:
        namespace, name = pod.key
        # With its UID: another pod of that name is refused with a conflict.
        patch = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION_RECOMMENDATION: recommendation}}}
        await self._client.patch(PODS, name, namespace, patch, timeout_s=self._timeout_s())

    def _timeout_s(self) -> float:
        return self._leadership.write_timeout_s(_WRITE_TIMEOUT_S)


class ConfigMapPursuits:
    """What can't be read or written costs the report of a saving, and nothing else."""

    def __init__(self, client: KubeClient, leadership: Leadership, namespace: str) -> None:
        self._client = client
        self._leadership = leadership
        self._namespace = namespace

    async def load(self) -> tuple[Pursuit, ...]:
        try:
            found = await self._client.get(CONFIGMAPS, CONFIG_MAP, self._namespace)
            return pursuits_from_json(str((found.get("data") or {}).get(KEY) or ""))
        except NotFoundError:
            return ()
        except (GpuloomError, ValueError) as error:
            _log.warning("recommendations of before are not known", extra={"reason": str(error)})
            return ()

    async def save(self, pursuits: Sequence[Pursuit]) -> None:
        content: JsonObject = {"data": {KEY: pursuits_to_json(pursuits)}}
        try:
            timeout_s = self._leadership.write_timeout_s(_WRITE_TIMEOUT_S)
            try:
                await self._client.patch(
                    CONFIGMAPS, CONFIG_MAP, self._namespace, content, timeout_s=timeout_s
                )
            except NotFoundError:
                metadata = {"name": CONFIG_MAP, "namespace": self._namespace}
                await self._client.create(CONFIGMAPS, {"metadata": metadata, **content}, timeout_s=timeout_s)
        except GpuloomError as error:
            _log.warning("recommendations not kept", extra={"reason": str(error)})


class PrometheusCheck:
    """Whether Prometheus answers queries, asked every few seconds."""

    def __init__(self, client: PrometheusClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._problem: str | None = "Prometheus has not answered yet"

    def problem(self) -> str | None:
        return self._problem

    async def run(self) -> None:
        while True:
            try:
                await self._client.ping()
            except GpuloomError as error:
                self._problem = f"Prometheus: {error}"
            else:
                self._problem = None
            await self._clock.sleep(PING_S)
