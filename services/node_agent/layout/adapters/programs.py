"""Runs a program of the driver to its end, or kills it when its time is over."""

import asyncio
from collections.abc import Mapping, Sequence

from gpuloom.runtime.clock import Clock, deadline
from services.node_agent.layout.ports import StepError

_SHOWN = 300


async def run_program(
    command: Sequence[str],
    clock: Clock,
    timeout_s: float,
    *,
    text: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """What it printed. Raise StepError if it can't be run, fails, or takes longer."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=None if environment is None else dict(environment),
        )
    except OSError as error:
        raise StepError(f"{command[0]} can't be run: {error.strerror}") from None
    try:
        async with deadline(clock, timeout_s):
            printed, _ = await process.communicate(text.encode())
    except TimeoutError:
        raise StepError(f"{command[0]} did not end within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    shown = printed.decode(errors="replace").strip()
    if process.returncode != 0:
        raise StepError(f"{command[0]} failed ({process.returncode}): {shown[:_SHOWN]}")
    return shown
