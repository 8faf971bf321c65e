"""How much of one card may be in use, as the card is now. Pure.

The ledger asks here when it sums up owners, and a node's agent when it is about to deliver, so that they
cannot disagree. Never decides who gets what.
"""

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, Gpu

MEMORY_DRIFT = 10
"""A card's total memory may have shrunk by one part in so many since something of it was given.

It is what the driver leaves of it: another driver reserves some MiB more, and ECC takes a sixteenth. The
shares that were given before still run, and must be able to start again.
"""


def counted_memory_mib(allocated: AllocatedDevice, gpu: Gpu) -> int:
    """What this part of the card counts for. A whole card is all its memory, whatever that was when given."""
    if allocated.milli >= MILLI_PER_GPU or not allocated.memory_mib:
        return gpu.memory_mib
    return allocated.memory_mib


def most_memory_mib(memory_mib: int) -> int:
    """The most that may count on a card of this total: what a larger one allowed stays given."""
    return memory_mib + memory_mib // MEMORY_DRIFT


def is_beyond(gpu: Gpu, milli: int, memory_mib: int) -> bool:
    """Whether shares of this sum can't have been given from this card."""
    return milli > MILLI_PER_GPU or memory_mib > most_memory_mib(gpu.memory_mib)
