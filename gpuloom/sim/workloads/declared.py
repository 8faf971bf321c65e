"""Plays the part of a user who declares GPUWorkloads: makes one now and then, clears up what is over."""

import itertools
import logging
import random
from collections.abc import Iterator

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.resources import GPU_WORKLOADS
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubelet.host import ANNOTATION_DURATION, ANNOTATION_LOAD, ANNOTATION_OUTCOME

EVERY_S = 12.0
MOST = 8
LABEL = "sim.gpuloom.dev/declared"
_MODELS = ("llama2", "bert", "whisper", "sdxl")
_STRATEGIES = ("leastLoaded", "random", "costOptimized")
_FAILING_ONE_IN = 5
_OVER = frozenset({"Succeeded", "Failed"})

_log = logging.getLogger(__name__)


def planned_workloads(seed: int, namespace: str) -> Iterator[JsonObject]:
    """Without end; equal seeds give equal workloads. Some fail at every attempt: they show retries."""
    rng = random.Random(f"declared/{seed}")
    for number in itertools.count():
        annotations = {
            ANNOTATION_DURATION: f"{rng.uniform(15, 60):.0f}s",
            ANNOTATION_LOAD: f"{rng.uniform(0.5, 0.95):.2f}",
        }
        if number % _FAILING_ONE_IN == _FAILING_ONE_IN - 1:
            annotations |= {ANNOTATION_OUTCOME: "failed", ANNOTATION_DURATION: "5s"}
        model = rng.choice(_MODELS)
        yield {
            "apiVersion": GPU_WORKLOADS.api_version,
            "kind": GPU_WORKLOADS.kind,
            "metadata": {
                "name": f"{model}-{seed}-{number:03d}",
                "namespace": namespace,
                "labels": {LABEL: "true"},
            },
            "spec": {
                "modelName": model,
                "gpuCount": rng.choice((1, 1, 2)),
                "priority": rng.choice(("low", "medium", "high")),
                "schedulingStrategy": _STRATEGIES[number % len(_STRATEGIES)],
                "retryPolicy": {"maxRetries": 2, "backoffSeconds": 5},
                "podTemplate": {
                    "metadata": {"annotations": annotations},
                    "spec": {"terminationGracePeriodSeconds": 5},
                },
            },
        }


class DeclaredWorkloads:
    def __init__(self, client: KubeClient, seed: int, namespace: str, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._plan = planned_workloads(seed, namespace)

    async def run(self) -> None:
        """Until cancelled. An API that is away for a while costs a turn, no more."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                await self._turn()
            except GpuloomError as error:
                _log.warning("declared workloads not played", extra={"error": str(error)})

    async def _turn(self) -> None:
        present = (await self._client.list(GPU_WORKLOADS, Selection(label_selector=LABEL))).items
        over = [obj for obj in present if (obj.get("status") or {}).get("phase") in _OVER]
        # The newest stay, so that people see how they ended.
        for obj in sorted(over, key=lambda one: str(one["metadata"].get("creationTimestamp")))[: -MOST // 2]:
            namespace, name = key_of(obj)
            try:
                await self._client.delete(GPU_WORKLOADS, name, namespace)
            except NotFoundError:
                continue
        if len(present) - len(over) < MOST // 2:
            try:
                await self._client.create(GPU_WORKLOADS, next(self._plan))
            except ConflictError:
                return
