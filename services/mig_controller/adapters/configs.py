"""GPUNodeConfigs and sharing policies: read from their informers, their status written back."""

import logging
from collections.abc import Callable
from dataclasses import replace

from gpuloom.codec.custom.sharing import (
    gpu_node_config,
    gpu_node_config_status_to_json,
    gpu_sharing_policy,
)
from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.conditions import Condition, status_patch, with_conditions
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.resources import GPU_NODE_CONFIGS, GPU_SHARING_POLICIES, Resource
from gpuloom.model.node import NodeMode
from gpuloom.model.sharing import GpuNodeConfig, GpuNodeConfigStatus
from gpuloom.runtime.clock import Clock
from services.mig_controller.controller import View
from services.mig_controller.core.reports import divided_by_nvidia, nvidia_text, policy_condition
from services.mig_controller.core.stages import divided

_log = logging.getLogger(__name__)


class StatusWriter:
    """`write_timeout_s` bounds a write by the lease, and raises NotReadyError without it."""

    def __init__(self, client: KubeClient, write_timeout_s: Callable[[float], float]) -> None:
        self._client = client
        self._write_timeout_s = write_timeout_s

    async def write(self, resource: Resource, name: str, patch: JsonObject | None) -> None:
        if patch is None:
            return
        try:
            timeout_s = self._write_timeout_s(5.0)
            await self._client.patch_status(resource, name, None, patch, timeout_s=timeout_s)
        except (ConflictError, NotFoundError):
            return
        except GpuloomError as error:
            _log.warning("a status can't be written", extra={"name": name, "reason": str(error)})


class SharingPolicies:
    """What the webhook makes of pods by them is its own; here they learn whether that can be given."""

    def __init__(self, writer: StatusWriter, informer: Informer, clock: Clock) -> None:
        self._writer = writer
        self._informer = informer
        self._clock = clock

    async def write_status(self, view: View) -> None:
        for obj in self._informer.objects():
            name = key_of(obj)[1]
            try:
                ready = policy_condition(gpu_sharing_policy(obj).spec, view.cards, view.nodes)
            except InvalidRequestError as error:
                ready = Condition("Ready", False, "Invalid", str(error))
            before = (obj.get("status") or {}).get("conditions") or []
            generation = int(metadata_of(obj).get("generation") or 0)
            found = with_conditions(before, [ready], generation, self._clock.now())
            patch = status_patch(obj, {"conditions": found})
            await self._writer.write(GPU_SHARING_POLICIES, name, patch)


class NodeConfigs:
    def __init__(self, writer: StatusWriter, informer: Informer, clock: Clock) -> None:
        self._writer = writer
        self._informer = informer
        self._clock = clock

    def all(self) -> list[GpuNodeConfig]:
        """Those that can be read; where two are about one node, the first by name comes last and counts."""
        found = []
        for obj in self._informer.objects():
            try:
                found.append(gpu_node_config(obj))
            except InvalidRequestError as error:
                _log.warning(
                    "a GPUNodeConfig can't be read", extra={"name": key_of(obj)[1], "reason": str(error)}
                )
        return sorted(found, key=lambda config: config.meta.name, reverse=True)

    async def write_status(self, view: View) -> None:
        configs = self.all()
        counts = {config.spec.node_name: config.meta.name for config in configs}
        for config in configs:
            obj = self._informer.get(config.meta.name)
            patch = None if obj is None else self._patch(obj, config, view, counts[config.spec.node_name])
            await self._writer.write(GPU_NODE_CONFIGS, config.meta.name, patch)

    def _patch(self, obj: JsonObject, config: GpuNodeConfig, view: View, counts: str) -> JsonObject | None:
        """`counts` is the name of the config by which the node is divided."""
        cards = [card for card in view.cards if card.node_name == config.spec.node_name]
        foreign = next((n for n in view.nodes if n.state.node_name == config.spec.node_name), None)
        if foreign is not None and foreign.state.mode is not NodeMode.NVIDIA:
            foreign = None
        going = {
            intent.request.gpu_uuid: frozenset(intent.request.destroy)
            for intent in view.intents
            if intent.node_name == config.spec.node_name
        }
        gpus = tuple(divided(card, frozenset(going.get(card.uuid, ()))) for card in cards)
        status = GpuNodeConfigStatus(gpus if foreign is None else divided_by_nvidia(foreign))
        body = gpu_node_config_status_to_json(replace(status, conditions=()))
        before = (obj.get("status") or {}).get("conditions") or []
        generation = int(metadata_of(obj).get("generation") or 0)
        if foreign is not None:
            text = (
                f"NVIDIA's device plugin gives out this node's GPUs, and divides them: {nvidia_text(foreign)}"
            )
            applied = Condition("Applied", False, "NvidiaDevicePlugin", text)
        elif config.meta.name != counts:
            text = f"GPUNodeConfig {counts} is about this node, too, and counts"
            applied = Condition("Applied", False, "Conflict", text)
        else:
            applied = self._condition(config, view, cards_found=bool(cards), changing=bool(going))
        body["conditions"] = with_conditions(before, [applied], generation, self._clock.now())
        return status_patch(obj, body)

    def _condition(
        self, config: GpuNodeConfig, view: View, *, cards_found: bool, changing: bool
    ) -> Condition:
        if not cards_found:
            return Condition("Applied", None, "NodeNotFound", "no GPU of this node is known")
        reasons = (view.waiting or {}).get(config.meta.name, {})
        if changing:
            return Condition("Applied", False, "Changing", "changes are under way")
        if reasons:
            uuid, reason = min(reasons.items())
            return Condition("Applied", False, "Waiting", f"{uuid}: {reason}")
        return Condition("Applied", True, "AsWanted", "")
