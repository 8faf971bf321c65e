"""Carries out one change of one GPU, step by step, until the driver shows it done, undone, or stuck.

The journal is written before the first step and after the last one. In between nothing is believed but what
the driver shows: `core/steps` draws each step from that. Whether a change may begin is decided elsewhere.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from gpuloom.errors import GpuloomError, UnavailableError
from gpuloom.model.layout import ChangeState, GpuLayout
from gpuloom.runtime.clock import Clock, deadline
from services.node_agent.layout.core.journal import Journal
from services.node_agent.layout.core.steps import Goal, Step, StepKind, next_step
from services.node_agent.layout.ports import LayoutDriver, Reach, SharingControl, StepError, Users

_log = logging.getLogger(__name__)

FAILPOINTS = ("layout-before-step", "layout-after-step", "layout-before-end")


@dataclass(frozen=True, slots=True)
class Patience:
    """A step is tried so often, with a pause between, and each try and each reading has its time."""

    tries: int = 3
    pause_s: float = 1.0
    step_timeout_s: float = 60.0
    read_timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What is changed, and who uses it."""

    driver: LayoutDriver
    sharing: SharingControl
    users: Users


class Book:
    """The journal in memory and on disk: it moves only together, and one change of it at a time."""

    def __init__(self, journal: Journal, save: Callable[[Journal], Awaitable[None]]) -> None:
        self.journal = journal
        self._save = save
        self._turn = asyncio.Lock()

    async def write(self, change: Callable[[Journal], Journal]) -> None:
        """Changes of several GPUs share the journal, so each is drawn from what it is by then.

        Raise UnavailableError if it can't be written; nothing has moved then.
        """
        async with self._turn:
            changed = change(self.journal)
            if changed != self.journal:
                await self._save(changed)
                self.journal = changed


class Executor:
    def __init__(self, machine: Machine, book: Book, clock: Clock, reach: Reach, patience: Patience) -> None:
        self._machine = machine
        self._book = book
        self._clock = clock
        self._reach = reach
        self._patience = patience

    async def read(self, gpu_uuid: str) -> GpuLayout:
        """Raise UnavailableError if the GPU does not answer."""
        try:
            async with deadline(self._clock, self._patience.read_timeout_s):
                layout = await self._machine.driver.read_layout(gpu_uuid)
                sharing = await self._machine.sharing.read(gpu_uuid)
        except TimeoutError:
            raise UnavailableError("the driver does not answer for this GPU") from None
        return replace(layout, sharing=sharing)

    async def finish(self, gpu_uuid: str) -> ChangeState:
        """Bring the open change of this GPU to its end, and say how it ended.

        Raise UnavailableError if that can't be told now: the change stays open, to be tried again.
        """
        change = self._book.journal.open[gpu_uuid]
        failure = await self.approach(gpu_uuid, change.goal)
        if failure and not change.back:
            fields = {"gpu": gpu_uuid, "change": change.request.id, "reason": failure}
            _log.warning("a change of a layout failed and is undone", extra=fields)
            await self._book.write(lambda journal: journal.turn_back(gpu_uuid, failure))
            change = self._book.journal.open[gpu_uuid]
            failure = await self.approach(gpu_uuid, change.goal)
        state, reason = _end(change.back, change.reason, failure)
        layout = await self.read(gpu_uuid)
        await self._reach("layout-before-end")
        await self._book.write(lambda journal: journal.end(layout, state, reason))
        fields = {"gpu": gpu_uuid, "change": change.request.id, "state": state.value, "reason": reason}
        _log.info("a change of a layout ended", extra=fields)
        return state

    async def approach(self, gpu_uuid: str, goal: Goal) -> str:
        """Step by step to the goal. The answer says why it was not reached; empty if it was."""
        tries: Counter[Step] = Counter()
        failure = ""
        while True:
            step = next_step(await self.read(gpu_uuid), goal)
            if step is None:
                return ""
            # Not only of steps in a row: what somebody else undoes again and again is not done for ever.
            if tries[step] >= self._patience.tries:
                return f"{step}: {failure}"
            if tries[step]:
                await self._clock.sleep(self._patience.pause_s)
            tries[step] += 1
            await self._reach("layout-before-step")
            failure = await self._try(gpu_uuid, step) or "the driver said it was done, and does not show it"
            await self._reach("layout-after-step")

    async def _try(self, gpu_uuid: str, step: Step) -> str:
        try:
            async with deadline(self._clock, self._patience.step_timeout_s):
                await self._do(gpu_uuid, step)
        except TimeoutError:
            return f"no answer within {self._patience.step_timeout_s:g} s"
        except (StepError, UnavailableError) as error:
            return str(error)
        return ""

    async def _do(self, gpu_uuid: str, step: Step) -> None:
        driver, sharing = self._machine.driver, self._machine.sharing
        if step.kind is StepKind.DESTROY and step.placement is not None:
            await self._refuse_used(gpu_uuid, step)
            await driver.destroy(gpu_uuid, step.placement)
        elif step.kind is StepKind.CREATE and step.placement is not None:
            await driver.create(gpu_uuid, step.placement)
        elif step.kind is StepKind.SET_MODE and step.enabled is not None:
            await self._refuse_used(gpu_uuid, step)
            await driver.set_mode(gpu_uuid, step.enabled)
        elif step.kind is StepKind.START_SHARING and step.sharing is not None:
            await sharing.start(gpu_uuid, step.sharing)
        elif step.kind is StepKind.STOP_SHARING:
            await sharing.stop(gpu_uuid)

    async def _refuse_used(self, gpu_uuid: str, step: Step) -> None:
        """Also in the middle of a change, and after a crash: somebody may use it by now."""
        try:
            usage = await self._machine.users.of(gpu_uuid)
        except GpuloomError as error:
            raise StepError(f"it is not known who uses it: {error}") from None
        user = usage.of_any() if step.placement is None else usage.of(step.placement)
        if usage.unknown_reason or user:
            raise StepError(f"in use by {user}" if user else usage.unknown_reason)


def _end(back: bool, reason: str, failure: str) -> tuple[ChangeState, str]:
    if failure:
        return ChangeState.STUCK, f"{reason}; undoing it failed: {failure}"
    return (ChangeState.ROLLED_BACK, reason) if back else (ChangeState.DONE, "")
