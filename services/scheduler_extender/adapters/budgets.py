"""Fetches the cost engine's verdicts in advance. If it does not answer, nobody is stopped."""

import logging

from gpuloom.clients.cost import list_verdicts
from gpuloom.errors import GpuloomError
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.verbs.budgets import BudgetGate

_log = logging.getLogger(__name__)

INTERVAL_S = 5.0


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
