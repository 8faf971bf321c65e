"""Which objects a slow reader still has to look at: each key once, and a bound that loses nothing.

Beyond its capacity the queue forgets the keys and says "look at everything" once instead.
"""

import asyncio
from enum import Enum
from typing import Final, Literal

from gpuloom.kube.objects import ObjectKey


class _Marker(Enum):
    RESYNC = "resync"


RESYNC: Final = _Marker.RESYNC
Resync = Literal[_Marker.RESYNC]


class ChangeQueue:
    """For one reader. Keys come in the order in which they first changed."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, must be at least 1")
        self._capacity = capacity
        self._keys: dict[ObjectKey, None] = {}
        self._resync = False
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return 1 if self._resync else len(self._keys)

    async def get(self) -> ObjectKey | Resync:
        """The next key, or RESYNC: read the whole cache. The key may be gone from the cache by then."""
        await self._filled.wait()
        if self._resync:
            self._resync = False
            self._filled.clear()
            return RESYNC
        key = next(iter(self._keys))
        del self._keys[key]
        if not self._keys:
            self._filled.clear()
        return key

    def put(self, key: ObjectKey) -> None:
        # A reader that will read everything anyway need not be told of one more.
        if self._resync:
            return
        self._keys[key] = None
        if len(self._keys) > self._capacity:
            self.put_resync()
        self._filled.set()

    def put_resync(self) -> None:
        self._keys.clear()
        self._resync = True
        self._filled.set()
