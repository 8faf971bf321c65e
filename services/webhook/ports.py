"""What the webhook needs from outside. All of it is in memory: admission waits for nobody."""

from collections.abc import Mapping
from typing import Any, Protocol

from services.webhook.core.pods import Advice, Surroundings


class Advisor(Protocol):
    async def advice(self, pod: Mapping[str, Any], namespace: str, *, timeout_s: float) -> Advice | None:
        """What pods like this one need; None if nobody knows, or not in time.

        With no time left only what is known already is told. Never raises a GpuloomError.
        """


class Cluster(Protocol):
    def surroundings(self, pod: Mapping[str, Any], namespace: str) -> Surroundings:
        """As last observed; empty where nothing is known yet."""


class NoAdvisor:
    """Where nobody is asked."""

    async def advice(self, pod: Mapping[str, Any], namespace: str, *, timeout_s: float) -> Advice | None:
        return None
