"""Who leads, and whether the history of the API went back, as the Lease shows both."""

from collections.abc import Callable

from gpuloom.kube.client import KubeClient
from gpuloom.kube.lease import record_from
from gpuloom.kube.objects import JsonObject, is_older_version
from gpuloom.kube.resources import Resource


class NotedLease:
    """The lease's part of the API. Keeps in mind who holds the lease: a standby tells it its callers.

    Whoever leads writes the lease twice a second, and everybody else reads it as often. So if the API is set
    back to an earlier state, the lease shows it within a second, before other versions can catch up.
    """

    def __init__(self, client: KubeClient, on_rewind: Callable[[], None]) -> None:
        self.holder = ""
        """Empty: nobody, or not known."""
        self._client = client
        self._on_rewind = on_rewind
        self._version = ""

    async def get(
        self, resource: Resource, name: str, namespace: str | None, *, timeout_s: float
    ) -> JsonObject:
        return self._noted(await self._client.get(resource, name, namespace, timeout_s=timeout_s))

    async def create(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject:
        return self._noted(await self._client.create(resource, obj, timeout_s=timeout_s))

    async def replace(self, resource: Resource, obj: JsonObject, *, timeout_s: float) -> JsonObject:
        return self._noted(await self._client.replace(resource, obj, timeout_s=timeout_s))

    def _noted(self, lease: JsonObject) -> JsonObject:
        record = record_from(lease)
        self.holder = record.holder
        before, self._version = self._version, record.resource_version
        if is_older_version(record.resource_version, before):
            self._on_rewind()
        return lease
