"""What inference autoscaling needs from outside, and how it may fail."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from services.autoscaler.inference.core.measures import Answer, Question

WriteTimeout = Callable[[float], float]
"""How long a write may take while we surely lead. Raise NotReadyError if we don't."""


class Measures(Protocol):
    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        """An answer for each; what can't be asked is an answer with a problem."""

    async def past(self, query: str, until: datetime, length: timedelta, step_s: float) -> list[float]:
        """Raise a GpuloomError if it can't be asked now."""


class NodePlanner(Protocol):
    def hasten(self, namespace: str, selector: str) -> None:
        """Pods of this selector that find no place need a node at once, without the usual wait."""


class NoMeasures:
    """Where no Prometheus is configured: every metric is missing, so every target holds."""

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        return {name: Answer(problem="GPULOOM_PROMETHEUS_URL is not set") for name in questions}

    async def past(self, query: str, until: datetime, length: timedelta, step_s: float) -> list[float]:
        return []
