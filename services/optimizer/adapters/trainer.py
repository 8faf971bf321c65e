"""Trains in a process of its own: scikit-learn alone would be most of this service's memory."""

import asyncio
import sys
from collections.abc import Iterable

import orjson

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock, deadline
from services.optimizer.core.model import MAX_BYTES
from services.optimizer.ports import LabelledRun

TIMEOUT_S = 300.0


class ChildTrainer:
    def __init__(self, seed: int, clock: Clock) -> None:
        self._seed = seed
        self._clock = clock

    async def train(self, labelled: Iterable[LabelledRun]) -> bytes:
        rows = orjson.dumps([[each.label, *each.features] for each in labelled])
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "services.optimizer.training", "--seed", str(self._seed)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            # As where the pod may have no more processes or memory.
            raise UnavailableError(f"the training can't be started: {error.strerror}") from error
        try:
            async with deadline(self._clock, TIMEOUT_S):
                model, _ = await process.communicate(rows)
        except TimeoutError as error:
            raise UnavailableError(f"the training took longer than {TIMEOUT_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode or not model or len(model) > MAX_BYTES:
            raise UnavailableError(f"the training ended with {process.returncode} and no model")
        return model
