"""Answers for one target or some pods: which pods those are, and what Prometheus says of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuloom.errors import NotFoundError, UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.model.policies import InferenceServer, ScaleTarget
from gpuloom.runtime.clock import Clock
from services.autoscaler.inference.adapters.targets import Targets, replicas_of
from services.autoscaler.inference.core.catalogue import CATALOGUE, Value
from services.autoscaler.inference.core.measures import Question
from services.autoscaler.inference.core.queries import MOST_NAMES, Pods
from services.autoscaler.inference.core.readings import combined
from services.autoscaler.inference.ports import Measures


@dataclass(frozen=True)
class CatalogueReader:
    client: KubeClient
    targets: Targets
    measures: Measures
    clock: Clock

    async def of_pods(self, namespace: str, name: str, selector: str, metric: str) -> list[Value]:
        """Of one pod, or of those of a selector for `*`. Pods without a fresh value are left out.

        NotFoundError for a metric that there is none of, and where no pod has a value.
        """
        _known(metric)
        listed = (await self.client.list(PODS, Selection(namespace, selector if name == "*" else ""))).items
        asked = [pod for pod in listed if name in ("*", pod["metadata"]["name"])]
        values = await self._by_pod(namespace, asked, metric)
        if not values:
            raise NotFoundError(f"no pod has a fresh value of {metric}")
        return [Value("Pod", "v1", pod, amount) for pod, amount in sorted(values.items())]

    async def of_target(self, namespace: str, target: ScaleTarget, metric: str) -> float:
        """Of all its ready pods together. NotFoundError if too few of them have a value."""
        how = _known(metric)
        scale = await self.targets.read(target, namespace)
        listed = await self.targets.pods(scale)
        values = await self._by_pod(namespace, listed, metric)
        ready = replicas_of(scale.replicas, listed, self.clock.now()).ready
        amount, why = combined(values, ready, CATALOGUE[how].how)
        if amount is None:
            raise NotFoundError(f"{metric} of {target.kind} {target.name} is not known: {why}")
        return amount

    async def _by_pod(self, namespace: str, pods: Sequence[JsonObject], metric: str) -> dict[str, float]:
        names = [str(pod["metadata"]["name"]) for pod in pods]
        parts = [names[start : start + MOST_NAMES] for start in range(0, len(names), MOST_NAMES)]
        asked = {
            part[0]: Question(
                CATALOGUE[metric].by_pod(InferenceServer.AUTO, Pods(namespace, part, part[0])), by_pod=True
            )
            for part in parts
        }
        answers = (await self.measures.ask(asked)).values() if asked else ()
        problem = next((one.problem for one in answers if one.problem), "")
        if problem:
            raise UnavailableError(problem)
        known = set(names)
        return {pod: value for one in answers for pod, value in one.pods.items() if pod in known}


def _known(metric: str) -> str:
    if metric not in CATALOGUE:
        raise NotFoundError(f"there is no metric {metric}; there are {', '.join(sorted(CATALOGUE))}")
    return metric
