"""Advice by history, from the optimizer, which may be slow or away."""

import logging
from collections.abc import Mapping
from typing import Any

from gpuloom.clients.optimizer import advise
from gpuloom.errors import GpuloomError
from gpuloom.rpc.channel import RpcChannel
from services.webhook.core.pods import Advice
from services.webhook.metrics import WebhookMetrics

_log = logging.getLogger(__name__)


class OptimizerAdvisor:
    """Whatever goes wrong is no advice: then the pod is admitted without."""

    def __init__(self, channel: RpcChannel, metrics: WebhookMetrics) -> None:
        self._channel = channel
        self._metrics = metrics

    async def advice(self, pod: Mapping[str, Any], namespace: str, *, timeout_s: float) -> Advice | None:
        try:
            told = await advise(self._channel, dict(pod), namespace, timeout_s=timeout_s)
        except GpuloomError as error:
            self._metrics.advice.labels("failed").inc()
            _log.debug("no advice", extra={"namespace": namespace, "reason": str(error)})
            return None
        self._metrics.advice.labels("none" if told.utilization_ratio is None else "advised").inc()
        if told.utilization_ratio is None:
            return None
        return Advice(
            told.utilization_ratio,
            told.mig_profile or None,
            told.plugin_resource or None,
            told.milli or None,
            told.memory_mib or None,
        )
