"""Namespaces and sharing policies as observed, and the CA bundle of the webhook's own configurations."""

import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpuloom.codec.custom.sharing import gpu_sharing_policy
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import (
    GPU_SHARING_POLICIES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    VALIDATING_WEBHOOKS,
    Resource,
)
from gpuloom.model.node import NodeState
from gpuloom.model.sharing import GpuSharingPolicy
from gpuloom.runtime.clock import Clock
from services.webhook.core.pods import Offers, Surroundings
from services.webhook.core.surroundings import chosen_policy, offers_of, surroundings_of
from services.webhook.metrics import WebhookMetrics

_CHECK_S = 30.0
_FILE_CHECK_S = 1.0
_OFFERS_S = 1.0
"""Nodes change all the time, and what they offer seldom does: it is worked out at most so often."""

_log = logging.getLogger(__name__)


class KubernetesCluster:
    """`states`: nodes as discovery tells them."""

    def __init__(self, client: KubeClient, clock: Clock, states: Callable[[], list[NodeState]]) -> None:
        self.namespaces = Informer(client, NAMESPACES, clock, InformerOptions(transform=_trimmed))
        self.policies = Informer(client, GPU_SHARING_POLICIES, clock)
        self.policies.on_change(self._policy_changed)
        self._states = states
        self._parsed: dict[str, GpuSharingPolicy] = {}
        self._offers: Offers | None = None
        self._changed = False
        self._gathered_s = 0.0
        self._clock = clock

    @property
    def informers(self) -> tuple[Informer, ...]:
        return self.namespaces, self.policies

    def nodes_changed(self, *_: object) -> None:
        """What they offer is worked out again when it is asked for, soon."""
        self._changed = True

    def surroundings(self, pod: Mapping[str, Any], namespace: str) -> Surroundings:
        offers = self._present_offers()
        known = self.namespaces.get(namespace) or {}
        labels = (known.get("metadata") or {}).get("labels") or {}
        pod_labels = (pod.get("metadata") or {}).get("labels") or {}
        policy = chosen_policy(list(self._parsed.values()), pod_labels, labels)
        return surroundings_of(labels, offers, policy)

    def _present_offers(self) -> Offers:
        now_s = self._clock.monotonic()
        if self._offers is None or (self._changed and now_s - self._gathered_s >= _OFFERS_S):
            self._offers, self._changed, self._gathered_s = offers_of(self._states()), False, now_s
        return self._offers

    def _policy_changed(self, change: Change) -> None:
        name = change.key[1]
        self._parsed.pop(name, None)
        if change.new is None:
            return
        try:
            self._parsed[name] = gpu_sharing_policy(change.new)
        except InvalidRequestError as error:
            _log.warning("sharing policy left out", extra={"policy": name, "reason": str(error)})


class CaBundle:
    """Keeps the CA in the webhook configurations true to the file, so that certificates rotate by themselves.

    Any replica writes; they all write the same.
    """

    def __init__(
        self,
        client: KubeClient,
        name: str,
        ca: Callable[[], bytes],
        clock: Clock,
        metrics: WebhookMetrics,
        *,
        every_s: float = _CHECK_S,
    ) -> None:
        self._every_s = every_s
        self._client = client
        self._name = name
        self._ca = ca
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Write soon after the file changed, and now and then look whether somebody else wrote."""
        while True:
            written = self._ca()
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
                try:
                    await self._keep(resource)
                except GpuloomError as error:
                    self._metrics.ca_bundles.labels("failed").inc()
                    fields = {"configuration": f"{resource.plural}/{self._name}", "reason": str(error)}
                    _log.warning("CA bundle not written", extra=fields)
            ends_s = self._clock.monotonic() + self._every_s
            while self._ca() == written and self._clock.monotonic() < ends_s:
                await self._clock.sleep(min(_FILE_CHECK_S, self._every_s))

    async def _keep(self, resource: Resource) -> None:
        wanted = base64.b64encode(self._ca()).decode()
        found = await self._client.get(resource, self._name)
        webhooks = found.get("webhooks") or []
        operations = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted}
            for index, webhook in enumerate(webhooks)
            if (webhook.get("clientConfig") or {}).get("caBundle") != wanted
        ]
        if operations:
            await self._client.json_patch(resource, self._name, None, operations)
            self._metrics.ca_bundles.labels("written").inc()
            _log.info("CA bundle written", extra={"configuration": f"{resource.plural}/{self._name}"})


def _trimmed(namespace: JsonObject) -> JsonObject:
    metadata = namespace.get("metadata") or {}
    kept = ("name", "uid", "resourceVersion", "labels")
    return {"metadata": {key: metadata[key] for key in kept if key in metadata}}
