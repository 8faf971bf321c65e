"""NVIDIA's driver as what cuts GPUs.

A new mode may need a reset, for which every handle has to be let go; the program that resets is a setting,
because NVML itself has no call for it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpuloom.errors import UnavailableError
from gpuloom.model.layout import GpuLayout
from gpuloom.model.mig import MigPlacement
from gpuloom.runtime.clock import Clock
from services.node_agent.layout.adapters.programs import run_program
from services.node_agent.layout.ports import StepError
from services.node_agent.nvml import cutting
from services.node_agent.nvml.binding import NvmlError
from services.node_agent.nvml.cutting import Card, CutError
from services.node_agent.nvml.driver import NvmlDriver

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmlLayoutOptions:
    """`reset_command` is followed by the GPU's UUID; empty: GPUs are never reset."""

    reset_command: tuple[str, ...] = ("nvidia-smi", "--gpu-reset", "-i")
    read_patience_s: float = 10.0
    write_patience_s: float = 45.0
    reset_patience_s: float = 60.0


class NvmlLayouts:
    def __init__(self, driver: NvmlDriver, clock: Clock, options: NvmlLayoutOptions | None = None) -> None:
        self._driver = driver
        self._clock = clock
        self._options = options or NvmlLayoutOptions()

    async def read_layout(self, gpu_uuid: str) -> GpuLayout:
        try:
            return await self._driver.perform(gpu_uuid, cutting.layout_now, self._options.read_patience_s)
        except (NvmlError, CutError) as error:
            raise UnavailableError(cutting.described(error)) from None

    async def create(self, gpu_uuid: str, placement: MigPlacement) -> None:
        await self._write(gpu_uuid, lambda card: cutting.create(card, placement))

    async def destroy(self, gpu_uuid: str, placement: MigPlacement) -> None:
        await self._write(gpu_uuid, lambda card: cutting.destroy(card, placement))

    async def set_mode(self, gpu_uuid: str, enabled: bool) -> None:
        outcome = await self._write(gpu_uuid, lambda card: cutting.set_mode(card, enabled))
        if outcome.active:
            return
        if not outcome.reset_required or not self._options.reset_command:
            raise StepError(f"MIG mode does not take: {outcome.text}")
        _log.info("a GPU is reset for its MIG mode", extra={"gpu": gpu_uuid})
        await self._driver.rest(lambda: self._reset(gpu_uuid))

    async def _reset(self, gpu_uuid: str) -> None:
        command = (*self._options.reset_command, gpu_uuid)
        await run_program(command, self._clock, self._options.reset_patience_s)

    async def _write(self, gpu_uuid: str, job: Callable[[Card], T]) -> T:
        try:
            return await self._driver.perform(gpu_uuid, job, self._options.write_patience_s)
        except (NvmlError, CutError) as error:
            raise StepError(cutting.described(error)) from None
