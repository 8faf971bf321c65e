"""When Python looks for garbage, so that callers don't wait for it.

What a service knows of a large cluster is a million objects that stay. Looking through all of them takes a
quarter of a second, in which nobody is answered, and while nodes and pods are listed Python would do so again
and again. So it looks less often, and leaves alone what was there when the service was synced; of that, once
an hour it finds out what has become garbage since.
"""

import gc
from collections.abc import Callable

from gpuloom.runtime.clock import Clock

YOUNG_OBJECTS = 50_000
"""So many more made than freed make Python look among the youngest; its own default is 700."""
ASK_INTERVAL_S = 1.0
FULL_LOOK_INTERVAL_S = 3600.0


_ORDINARY = gc.get_threshold()
_keepers: set[object] = set()


async def keep_out_of_the_way(is_synced: Callable[[], bool], clock: Clock) -> None:
    """Until cancelled; then all is as it was before, unless another service of this process needs it, too."""
    keeper = object()
    _keepers.add(keeper)
    gc.set_threshold(YOUNG_OBJECTS, *_ORDINARY[1:])
    try:
        while not is_synced():
            await clock.sleep(ASK_INTERVAL_S)
        while True:
            _look_at_all()
            await clock.sleep(FULL_LOOK_INTERVAL_S)
    finally:
        _keepers.discard(keeper)
        if not _keepers:
            gc.unfreeze()
            gc.set_threshold(*_ORDINARY)


def _look_at_all() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
