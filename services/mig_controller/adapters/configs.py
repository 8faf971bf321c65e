"""GPUNodeConfigs and sharing policies: read from their informers, their status written back."""

import logging
from collections.abc import Callable
from dataclasses import replace

from gpuloom.codec.custom.sharing import gpu_node_config, gpu_node_config_status_to_json
from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.conditions import Condition, status_patch, with_conditions
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.resources import GPU_NODE_CONFIGS
from gpuloom.model.sharing import GpuNodeConfig, GpuNodeConfigStatus
from gpuloom.runtime.clock import Clock
from services.mig_controller.controller import View
from services.mig_controller.core.stages import divided

_log = logging.getLogger(__name__)


class NodeConfigs:
    def __init__(
        self, client: KubeClient, informer: Informer, clock: Clock, write_timeout_s: Callable[[float], float]
    ) -> None:
        self._client = client
        self._informer = informer
        self._clock = clock
        self._write_timeout_s = write_timeout_s

    def all(self) -> list[GpuNodeConfig]:
        """Those that can be read; the oldest where two are about one node."""
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
        for config in self.all():
            obj = self._informer.get(config.meta.name)
            patch = None if obj is None else self._patch(obj, config, view)
            if patch is None:
                continue
            try:
                timeout_s = self._write_timeout_s(5.0)
                await self._client.patch_status(
                    GPU_NODE_CONFIGS, config.meta.name, None, patch, timeout_s=timeout_s
                )
            except (ConflictError, NotFoundError):
                continue
            except GpuloomError as error:
                _log.warning(
                    "a status can't be written", extra={"name": config.meta.name, "reason": str(error)}
                )

    def _patch(self, obj: JsonObject, config: GpuNodeConfig, view: View) -> JsonObject | None:
        cards = [card for card in view.cards if card.node_name == config.spec.node_name]
        going = {
            intent.request.gpu_uuid: frozenset(intent.request.destroy)
            for intent in view.intents
            if intent.node_name == config.spec.node_name
        }
        status = GpuNodeConfigStatus(
            tuple(divided(card, frozenset(going.get(card.uuid, ()))) for card in cards)
        )
        body = gpu_node_config_status_to_json(replace(status, conditions=()))
        before = (obj.get("status") or {}).get("conditions") or []
        generation = int(metadata_of(obj).get("generation") or 0)
        applied = self._condition(config, view, cards_found=bool(cards), changing=bool(going))
        body["conditions"] = with_conditions(before, [applied], generation, self._clock.now())
        return status_patch(obj, body)

    def _condition(
        self, config: GpuNodeConfig, view: View, *, cards_found: bool, changing: bool
    ) -> Condition:
        if not cards_found:
            return Condition("Applied", None, "NodeNotFound", "no GPU of this node that can be cut is known")
        reasons = (view.waiting or {}).get(config.meta.name, {})
        if changing:
            return Condition("Applied", False, "Changing", "changes are under way")
        if reasons:
            uuid, reason = min(reasons.items())
            return Condition("Applied", False, "Waiting", f"{uuid}: {reason}")
        return Condition("Applied", True, "AsWanted", "")
