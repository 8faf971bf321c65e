"""Empties nodes: cordons, asks pods to leave in order, tells of those that nobody makes anew, opens again.

A node is drained because its claim is (scale-down, failure) or because its cloud announced its end (spot).
"""

import logging
from datetime import datetime

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.errors import DisruptionBudgetError, TooManyRequestsError
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.claims import ClaimState, GpuNodeClaim
from gpuloom.runtime.clock import Clock
from services.autoscaler.core.lifecycle import drain
from services.autoscaler.core.lifecycle.drain import EvictionPriority, Tenant, evictions, is_drained
from services.autoscaler.nodes.cluster import ClusterReader, is_given_up

_log = logging.getLogger(__name__)

CORDONED_BY = "gpuloom-autoscaler"


class Drainer:
    def __init__(
        self, client: KubeClient, reader: ClusterReader, recorder: EventRecorder, clock: Clock
    ) -> None:
        self._client = client
        self._reader = reader
        self._recorder = recorder
        self._clock = clock

    def drained(self, claims: list[GpuNodeClaim]) -> frozenset[str]:
        """Draining claims whose machines may end: nothing that must move is on them."""
        return frozenset(
            one.meta.name
            for one in claims
            if one.status.state is ClaimState.DRAINING and self.is_empty(one.status.node_name)
        )

    def is_empty(self, node: str | None) -> bool:
        if node is None:
            return True
        tenants = self._reader.tenants(node)
        if is_given_up(self._reader.sources.nodes.get(node) or {}, self._clock.now()):
            # Nobody is there who could end what was told to leave.
            tenants = [one for one in tenants if not one.leaving]
        return is_drained(tenants)

    async def drain(
        self, node: str, since: datetime, deadline: datetime | None, why: str, *, evict: bool = True
    ) -> None:
        """One step; call it again until the node is empty."""
        await self.cordon(node, why)
        if not evict:
            return
        tenants = self._reader.tenants(node)
        if deadline is not None:
            await self._ask_for_checkpoints(tenants)
        now = self._clock.now()
        for eviction in evictions(tenants, since, deadline, now):
            await self._evict(eviction.tenant, eviction.grace_s, deadline is not None, why)

    async def cordon(self, node: str, why: str) -> None:
        obj = self._reader.sources.nodes.get(node)
        if obj is None or (obj.get("spec") or {}).get("unschedulable"):
            return
        patch = {
            "spec": {"unschedulable": True},
            "metadata": {"annotations": {drain.ANNOTATION_CORDONED: CORDONED_BY}},
        }
        await self._client.patch(NODES, node, None, patch)
        self._recorder.normal({**obj, "kind": "Node", "apiVersion": "v1"}, "Cordoned", why)
        _log.info("node cordoned", extra={"node": node, "reason": why})

    async def uncordon(self, node: str) -> None:
        """Only what was cordoned here: a person's cordon stays."""
        obj = self._reader.sources.nodes.get(node)
        if obj is None or not self.was_cordoned_here(node):
            return
        patch = {
            "spec": {"unschedulable": None},
            "metadata": {"annotations": {drain.ANNOTATION_CORDONED: None}},
        }
        await self._client.patch(NODES, node, None, patch)
        _log.info("node uncordoned", extra={"node": node})

    def cordoned(self) -> set[str]:
        """Nodes that were cordoned here, also by a leader before this one."""
        return {key_of(node)[1] for node in self._reader.sources.nodes.objects() if _is_ours(node)}

    def was_cordoned_here(self, node: str) -> bool:
        return _is_ours(self._reader.sources.nodes.get(node) or {})

    async def _evict(self, tenant: Tenant, grace_s: float, forced: bool, why: str) -> None:
        ref = tenant.ref
        if tenant.bare:
            pod = self._reader.sources.pods.get(ref.name, ref.namespace) or {}
            text = f"its node goes ({why}), and no controller will make this pod anew"
            self._recorder.warning({**pod, "kind": "Pod", "apiVersion": "v1"}, "NodeGoes", text)
        options = DeleteOptions(uid=ref.uid, grace_period_s=int(grace_s) if forced else None)
        try:
            await self._client.evict(ref.namespace, ref.name, options)
            _log.info("pod evicted", extra={"pod": str(ref), "priority": tenant.priority, "reason": why})
        except (NotFoundError, ConflictError):
            return
        except DisruptionBudgetError as error:
            _log.info("eviction waits for a budget", extra={"pod": str(ref), "error": str(error)})
        except TooManyRequestsError as error:
            _log.info("eviction waits", extra={"pod": str(ref), "error": str(error)})
        except GpuloomError as error:
            # Such as the 500 for a pod of two budgets, which stays: it must not keep others from leaving.
            _log.warning("pod not evicted", extra={"pod": str(ref), "error": str(error)})

    async def _ask_for_checkpoints(self, tenants: list[Tenant]) -> None:
        """At once, so that what leaves last has the whole notice to save its work."""
        for tenant in tenants:
            pod = self._reader.sources.pods.get(tenant.ref.name, tenant.ref.namespace)
            asked = drain.ANNOTATION_CHECKPOINT_REQUESTED in (metadata_of(pod or {}).get("annotations") or {})
            if pod is None or asked or tenant.daemon or tenant.priority is not EvictionPriority.HIGH:
                continue
            text = format_time(self._clock.now())
            patch = {"metadata": {"annotations": {drain.ANNOTATION_CHECKPOINT_REQUESTED: text}}}
            try:
                await self._client.patch(PODS, tenant.ref.name, tenant.ref.namespace, patch)
            except GpuloomError as error:
                _log.warning("checkpoint not asked for", extra={"pod": str(tenant.ref), "error": str(error)})


def _is_ours(node: JsonObject) -> bool:
    annotations = metadata_of(node).get("annotations") or {}
    return bool(annotations.get(drain.ANNOTATION_CORDONED) == CORDONED_BY)
