"""Fetches the cost engine's verdicts in advance. If it does not answer, nobody is stopped."""

import logging
from collections.abc import Callable, Iterable

from gpuloom.clients.cost import list_verdicts
from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.verbs.budgets import BudgetGate

_log = logging.getLogger(__name__)

INTERVAL_S = 5.0
WAITING_INTERVAL_S = 1.0
_A_TURN = 20
"""Pods that are looked at in a row: a filter call must not wait for thousands of them."""


async def prefetch_verdicts(channel: RpcChannel, gate: BudgetGate, clock: Clock) -> None:
    answered = True
    while True:
        try:
            gate.verdicts = await list_verdicts(channel)
            answered = True
        except GpuloomError as error:
            gate.verdicts = ()
            if answered:
                _log.info("no budget verdicts, so no budget stops pods", extra={"reason": str(error)})
            answered = False
        await clock.sleep(INTERVAL_S)


async def watch_waiting(gate: BudgetGate, waiting: Callable[[], Iterable[JsonObject]], clock: Clock) -> None:
    """Keep up whether others wait. `waiting`: the GPU pods that are not bound."""
    while True:
        if gate.throttles:
            gate.others_wait = await _others_wait(gate, list(waiting()), clock)
        await clock.sleep(WAITING_INTERVAL_S)


async def _others_wait(gate: BudgetGate, pods: list[JsonObject], clock: Clock) -> bool:
    now = clock.now()
    for place, pod in enumerate(pods, 1):
        if gate.goes_first(pod, now):
            return True
        if place % _A_TURN == 0:
            await clock.sleep(0)
    return False
