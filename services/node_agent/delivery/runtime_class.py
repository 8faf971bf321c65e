"""Whether the cluster has NVIDIA's runtime class, asked about once a minute. Reads that one object alone."""

import logging
from typing import Protocol

from gpuloom.codec.fields import text_field
from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import RUNTIME_CLASSES, Resource
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

_ASK_INTERVAL_S = 60.0
_FIRST_RETRY_S = 5.0
_HANDLER = "nvidia"


class ObjectReader(Protocol):
    """What is needed of a client of Kubernetes; KubeClient gives it."""

    async def get(self, resource: Resource, name: str) -> JsonObject:
        """The object. Raise NotFoundError if there is none, another GpuloomError if it can't be read."""


class RuntimeClassReader:
    """Whether the cluster has a runtime class that is NVIDIA's, as it was when last asked."""

    def __init__(self, api: ObjectReader | None, name: str, clock: Clock) -> None:
        """Without an `api` there is none."""
        self.found = False
        self._api = api
        self._name = name
        self._clock = clock
        self._due_s = 0.0
        self._backoff = Backoff(_FIRST_RETRY_S, _ASK_INTERVAL_S)
        self._said = ""

    async def read_if_due(self) -> None:
        """What can't be read stays as it was."""
        if self._api is None or self._clock.monotonic() < self._due_s:
            return
        try:
            self.found, reason = await self._ask(self._api)
            self._backoff.reset()
            self._due_s = self._clock.monotonic() + _ASK_INTERVAL_S
        except GpuloomError as error:
            reason = str(error)
            self._due_s = self._clock.monotonic() + self._backoff.next_delay_s()
        if reason and reason != self._said:
            fields = {"runtime_class": self._name, "reason": reason}
            _log.warning("devices can't be delivered by environment", extra=fields)
        self._said = reason

    async def _ask(self, api: ObjectReader) -> tuple[bool, str]:
        """Whether it is there, and if not, why."""
        try:
            handler = text_field(await api.get(RUNTIME_CLASSES, self._name), "handler", "runtimeClass")
        except NotFoundError:
            return False, "the cluster has no such runtime class"
        if handler == _HANDLER or handler.startswith(f"{_HANDLER}-"):
            return True, ""
        return False, "its handler is not NVIDIA's runtime"
