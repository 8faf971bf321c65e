"""Keeps the CA of our APIServices true to our certificate. One that somebody else owns is left alone.

Never creates an APIService: one that outlives its server would block the deletion of every namespace.
"""

import base64
import logging
from collections.abc import Callable

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, resource_version_of
from gpuloom.kube.resources import Resource
from gpuloom.runtime.clock import Clock
from services.autoscaler.inference.core.catalogue import VERSIONS

_log = logging.getLogger(__name__)

API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
CHECKED_S = 60.0


class ApiServices:
    """`service`: namespace and name of the Service that leads to us. `owners`: who serves what, last seen."""

    def __init__(
        self, client: KubeClient, service: tuple[str, str], ca: Callable[[], bytes], clock: Clock
    ) -> None:
        self._client = client
        self._service = service
        self._ca = ca
        self._clock = clock
        self.owners: dict[str, str] = {}

    async def run(self) -> None:
        while True:
            for group, versions in VERSIONS.items():
                for version in versions:
                    name = f"{version}.{group}"
                    try:
                        self._tell(name, await self._keep(name))
                    except GpuloomError as error:
                        _log.warning("APIService not kept", extra={"name": name, "reason": str(error)})
            await self._clock.sleep(CHECKED_S)

    async def _keep(self, name: str) -> str:
        """Whose it is: ours, nobody's, or namespace/name of another Service."""
        try:
            found = await self._client.get(API_SERVICES, name)
        except NotFoundError:
            return "nobody"
        spec = found.get("spec") or {}
        service = spec.get("service") or {}
        if (service.get("namespace"), service.get("name")) != self._service:
            return f"{service.get('namespace')}/{service.get('name')}"
        wanted = base64.b64encode(self._ca()).decode()
        if spec.get("caBundle") != wanted:
            patch: JsonObject = {"spec": {"caBundle": wanted}}
            version = resource_version_of(found)
            await self._client.patch(API_SERVICES, name, None, patch, resource_version=version)
            _log.info("CA bundle written", extra={"name": name})
        return "ours"

    def _tell(self, name: str, owner: str) -> None:
        if self.owners.get(name) != owner:
            self.owners[name] = owner
            if owner not in ("ours", "nobody"):
                _log.warning(
                    "the metrics API is somebody else's; scale by KEDA's external scaler instead",
                    extra={"name": name, "service": owner},
                )
