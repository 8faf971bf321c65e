"""Claims in Kubernetes: read from an informer, written within the lease. Decides nothing.

`caught_up` says whether the informer has seen everything that was written here, so that no loop decides on a
picture older than its own last action.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuloom.codec.custom.claims import (
    gpu_node_claim,
    gpu_node_claim_spec_to_json,
    gpu_node_claim_status_to_json,
)
from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.conditions import is_deleting, with_finalizer, without_finalizer
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, is_older_version, key_of, metadata_of, resource_version_of
from gpuloom.kube.resources import GPU_NODE_CLAIMS
from gpuloom.model.claims import ClaimOffering, GpuNodeClaim, GpuNodeClaimSpec, GpuNodeClaimStatus
from gpuloom.runtime.clock import Clock
from services.autoscaler.core.buying.offerings import Offering
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.scaling.policies import Effective

_log = logging.getLogger(__name__)

FINALIZER = "gpuloom.dev/machine"
LABEL_POOL = "gpuloom.dev/pool"
LABEL_REPLACES = "gpuloom.dev/replaces"
LABEL_CONSOLIDATES = "gpuloom.dev/consolidates"
ANNOTATION_REASON = "gpuloom.dev/reason"
_WRITE_S = 5.0

WriteTimeout = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class NewClaim:
    name: str
    spec: GpuNodeClaimSpec
    status: GpuNodeClaimStatus
    reason: str = ""
    replaces: str = ""
    consolidates: str = ""
    """Claim that is drained once this one is ready."""


class ClaimStore:
    def __init__(self, client: KubeClient, clock: Clock, write_timeout_s: WriteTimeout) -> None:
        self.informer = Informer(client, GPU_NODE_CLAIMS, clock)
        self._client = client
        self._write_timeout_s = write_timeout_s
        self._written: dict[str, str] = {}
        """Version of our last write by name, until the informer shows it; empty: deleted."""
        # In a history that has gone back it is never shown.
        self.informer.on_rewind(self._written.clear)
        self.informer.on_change(self._note_deletion)

    def claims(self) -> list[GpuNodeClaim]:
        """By name; an object that can't be read is told of and left alone."""
        found = []
        for obj in sorted(self.informer.objects(), key=key_of):
            try:
                found.append(gpu_node_claim(obj))
            except InvalidRequestError as error:
                _log.error("claim can't be read", extra={"claim": key_of(obj)[1], "error": str(error)})
        return found

    def deleted(self) -> frozenset[str]:
        return frozenset(key_of(obj)[1] for obj in self.informer.objects() if is_deleting(obj))

    def metadata(self, name: str) -> Mapping[str, object]:
        return metadata_of(self.informer.get(name) or {})

    def consolidated(self) -> dict[str, str]:
        """Which claim takes whose place, by name."""
        found = {}
        for obj in self.informer.objects():
            old = (metadata_of(obj).get("labels") or {}).get(LABEL_CONSOLIDATES)
            if old:
                found[key_of(obj)[1]] = str(old)
        return found

    def caught_up(self) -> bool:
        for name, version in list(self._written.items()):
            shown = self.informer.get(name)
            if version:
                if shown is None or is_older_version(resource_version_of(shown), version):
                    return False
            elif shown is not None and not is_deleting(shown):
                return False
            del self._written[name]
        return True

    def _note_deletion(self, change: Change) -> None:
        """Of a claim that somebody deleted right after our write: it is not shown any more."""
        name = key_of(change.object)[1]
        last = resource_version_of(change.object)
        if change.new is None and not is_older_version(last, self._written.get(name, "")):
            self._written.pop(name, None)

    async def create(self, new: NewClaim) -> None:
        """With its finalizer, so that nobody can delete it before its machine. There already: no error."""
        labels = {LABEL_POOL: new.spec.pool_name}
        if new.replaces:
            labels[LABEL_REPLACES] = new.replaces
        if new.consolidates:
            labels[LABEL_CONSOLIDATES] = new.consolidates
        metadata: JsonObject = {"name": new.name, "labels": labels, "finalizers": [FINALIZER]}
        if new.reason:
            metadata["annotations"] = {ANNOTATION_REASON: new.reason[:1000]}
        spec = _without_nothing(gpu_node_claim_spec_to_json(new.spec))
        try:
            created = await self._client.create(
                GPU_NODE_CLAIMS,
                {"metadata": metadata, "spec": spec},
                timeout_s=self._write_timeout_s(_WRITE_S),
            )
        except AlreadyExistsError:
            return
        self._written[new.name] = resource_version_of(created)
        await self._patch_status(new.name, new.status, resource_version_of(created))

    async def record(self, claim: GpuNodeClaim, status: GpuNodeClaimStatus) -> None:
        """ConflictError if somebody wrote it since it was read."""
        await self._patch_status(claim.meta.name, status, claim.meta.resource_version)

    async def forget(self, claim: GpuNodeClaim) -> None:
        name = claim.meta.name
        obj = self.informer.get(name)
        if obj is None:
            return
        try:
            if not is_deleting(obj):
                await self._client.delete(GPU_NODE_CLAIMS, name, timeout_s=self._write_timeout_s(_WRITE_S))
            patch = without_finalizer(obj, FINALIZER)
            if patch is not None:
                patch["metadata"].pop("resourceVersion", None)
                await self._client.patch(
                    GPU_NODE_CLAIMS, name, None, patch, timeout_s=self._write_timeout_s(_WRITE_S)
                )
        except NotFoundError:
            pass
        self._written[name] = ""

    async def protect(self) -> None:
        """Give their finalizer to claims that came without one, as those that a person made by hand."""
        for obj in self.informer.objects():
            patch = with_finalizer(obj, FINALIZER)
            if patch is not None:
                written = await self._client.patch(
                    GPU_NODE_CLAIMS, key_of(obj)[1], None, patch, timeout_s=self._write_timeout_s(_WRITE_S)
                )
                self._written[key_of(obj)[1]] = resource_version_of(written)

    async def _patch_status(self, name: str, status: GpuNodeClaimStatus, version: str) -> None:
        patch = {"status": gpu_node_claim_status_to_json(status)}
        for condition in patch["status"]["conditions"]:
            if condition.get("observedGeneration") is None:
                condition.pop("observedGeneration", None)
        written = await self._client.patch_status(
            GPU_NODE_CLAIMS,
            name,
            None,
            patch,
            resource_version=version,
            timeout_s=self._write_timeout_s(_WRITE_S),
        )
        self._written[name] = resource_version_of(written)


def new_claim(policy: Effective, offering: Offering, reason: str, now: datetime) -> NewClaim:
    """With a token that nobody else has, by which a cloud tells a repeated request."""
    token = secrets.token_hex(8)
    spec = GpuNodeClaimSpec(
        policy_name=policy.name,
        pool_name=offering.pool,
        offering=ClaimOffering(
            offering.key.instance_type, offering.key.capacity_type, offering.key.zone or None
        ),
        gpu_model=offering.instance.gpu.name,
        gpu_count=offering.instance.gpu_count,
        token=token,
    )
    return NewClaim(
        life.claim_name(offering.pool, token[:8]),
        spec,
        life.requested(now, offering.nano_usd_per_hour),
        reason,
    )


def _without_nothing(document: JsonObject) -> JsonObject:
    return {
        name: _without_nothing(value) if isinstance(value, dict) else value
        for name, value in document.items()
        if value is not None
    }
