"""The demand statistics in a ConfigMap, so that an extender that starts knows what recent pods asked for.

Placement works without them, only less well: whatever goes wrong here is told once and changes nothing else.
"""

import logging
from collections.abc import Callable

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import CONFIGMAPS
from gpuloom.placement.demand import Demand, demand_from_json
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

NAME = "gpuloom-demand"
KEY = "demand.json"
SAVE_INTERVAL_S = 60.0
_TIMEOUT_S = 3.0


class DemandStore:
    def __init__(self, client: KubeClient, namespace: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._saved = ""
        self._complained = False

    async def load(self) -> Demand | None:
        """None if there is nothing that can be read."""
        try:
            found = await self._client.get(CONFIGMAPS, NAME, self._namespace, timeout_s=_TIMEOUT_S)
        except NotFoundError:
            return None
        except GpuloomError as error:
            self._complain("read", error)
            return None
        text = (found.get("data") or {}).get(KEY)
        try:
            demand = demand_from_json(text if isinstance(text, str) else "")
        except ValueError as error:
            # Written by hand, or by a version to come. It is replaced once this replica leads.
            _log.warning("saved demand statistics can't be used", extra={"reason": str(error)})
            return None
        self._saved = demand.to_json()
        return demand

    async def keep(self, demand: Callable[[], Demand], is_leader: Callable[[], bool]) -> None:
        """Save what changed once a minute, as long as this replica leads."""
        while True:
            await self._clock.sleep(SAVE_INTERVAL_S)
            text = demand().to_json()
            if is_leader() and text != self._saved:
                await self.save(text)

    async def save(self, text: str) -> None:
        content: JsonObject = {"data": {KEY: text}}
        try:
            try:
                await self._client.patch(CONFIGMAPS, NAME, self._namespace, content, timeout_s=_TIMEOUT_S)
            except NotFoundError:
                metadata = {"name": NAME, "namespace": self._namespace}
                await self._client.create(CONFIGMAPS, {"metadata": metadata, **content}, timeout_s=_TIMEOUT_S)
        except GpuloomError as error:
            self._complain("saved", error)
            return
        self._saved, self._complained = text, False

    def _complain(self, what: str, error: GpuloomError) -> None:
        """Once, until it works again."""
        if not self._complained:
            _log.warning(
                "demand statistics not kept, going on without", extra={"step": what, "reason": str(error)}
            )
        self._complained = True
