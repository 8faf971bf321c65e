"""The one place that touches pynvml: its functions, its errors, and what an error means for the reader.

Decides which errors say that a single value is missing and which say that the GPU or the driver is. It makes
no call by itself.
"""

from collections.abc import Callable
from typing import Any

import pynvml  # type: ignore[import-untyped, unused-ignore]

from services.node_agent.nvml.core.failure import (
    GPU_IS_LOST,
    RESET_REQUIRED,
    SESSION_CODES,
    Failure,
    failure_of_code,
)

nvml: Any = pynvml
NvmlError: type[Exception] = pynvml.NVMLError
Handle = Any

# The GPU is gone: reading its next value makes no sense.
_GPU_CODES = SESSION_CODES | {GPU_IS_LOST, RESET_REQUIRED}


def failure_of(error: Exception) -> Failure:
    return failure_of_code(code_of(error), str(error))


def code_of(error: Exception) -> int:
    return int(getattr(error, "value", 999))


def optional(function: Callable[..., Any], *arguments: Any) -> Any:
    """The call's value, or None if this driver or this GPU does not give it.

    An old driver lacks functions, a card lacks sensors, and one broken sensor must not hide the rest. Raise
    NvmlError only if the whole GPU or the whole session is gone.
    """
    try:
        return function(*arguments)
    except NvmlError as error:
        if is_gone(error):
            raise
        return None


def is_gone(error: Exception) -> bool:
    """The whole GPU, or the whole session, not just what was asked for."""
    return code_of(error) in _GPU_CODES


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
