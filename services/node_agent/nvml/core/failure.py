"""Why something could not be read: NVML's return codes, and what they mean to a person. Pure."""

from dataclasses import dataclass

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIBRARY_MISMATCH = 18

# The session itself is gone: nothing is said about any single GPU.
SESSION_CODES = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_MISMATCH})

_TEXTS = {
    UNINITIALIZED: "the NVIDIA driver was restarted",
    NO_PERMISSION: "the NVIDIA driver refuses access: are the agent's privileges and /dev/nvidia* there?",
    DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded: load it (modprobe nvidia), or install it",
    LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found: install the NVIDIA driver on the node, or make its library visible "
        "to the agent (runtime class nvidia, or a mount)"
    ),
    GPU_IS_LOST: "the GPU fell off the bus or is otherwise lost",
    RESET_REQUIRED: "the GPU must be reset before it can be used",
    LIBRARY_MISMATCH: "libnvidia-ml.so.1 and the loaded kernel driver are of different versions",
}


@dataclass(frozen=True, slots=True)
class Failure:
    code: int
    text: str


def failure_of_code(code: int, said: str) -> Failure:
    """`said` is the driver's own text, for a code of which nothing better is known."""
    return Failure(code, _TEXTS.get(code, f"the NVIDIA driver answers: {said} ({code})"))
