"""Waits for the driver's error events in a thread of its own, and keeps them until they are fetched.

It decides nothing about them. An error of the wait itself is no error of a GPU: it is tried again.
"""

import threading
from collections.abc import Container
from ctypes import c_void_p, cast

from services.node_agent.nvml.binding import Handle, NvmlError, code_of, is_gone, nvml
from services.node_agent.nvml.core.failure import TIMEOUT
from services.node_agent.nvml.core.xids import PendingXids, XidEvent
from services.node_agent.nvml.processes import instance_number

_PAUSE_S = 1.0
_STOP_S = 2.0


class EventWatcher:
    """Made, used and stopped in threads that may block; `take` and `works` are for the event loop."""

    def __init__(self, wait_s: float) -> None:
        """A wait takes up to `wait_s`, and so does the end. Raise NvmlError if the driver has no events."""
        self._wait_ms = max(1, int(wait_s * 1000))
        self._set = nvml.nvmlEventSetCreate()
        self._uuids: dict[int, str] = {}
        self._pending = PendingXids()
        self._pending_lock = threading.Lock()
        self._works = True
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nvml-events", daemon=True)
        self._thread.start()

    @property
    def works(self) -> bool:
        """The last wait ended with an event or with none, as waits do, and not with an error."""
        return self._works

    def register(self, handle: Handle, uuid: str) -> bool:
        """Whether this card reports errors: some have no such events. Raise NvmlError if the GPU is gone."""
        self._uuids[_address(handle)] = uuid
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        except NvmlError as error:
            if is_gone(error):
                raise
            return False
        return True

    def take(self, known: Container[str]) -> list[XidEvent]:
        """The last of each kind since the last time, of these GPUs; also after `stop`."""
        with self._pending_lock:
            return self._pending.take(known)

    def stop(self) -> None:
        """The set is freed only when nobody waits on it any more; a wait that hangs keeps it."""
        self._stopped.set()
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            optional_free(self._set)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, self._wait_ms)
            except NvmlError as error:
                self._works = code_of(error) == TIMEOUT
                if not self._works:
                    self._stopped.wait(_PAUSE_S)
                continue
            self._works = True
            uuid = self._uuids.get(_address(event.device))
            if uuid is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                instance = instance_number(event.gpuInstanceId)
                with self._pending_lock:
                    self._pending.add(XidEvent(uuid, int(event.eventData), instance))


def optional_free(event_set: Handle) -> None:
    try:
        nvml.nvmlEventSetFree(event_set)
    except NvmlError:
        # The session it belonged to is gone, and the set with it.
        return


def _address(handle: Handle) -> int:
    """Handles are made anew by each call, but point to the same place for the same GPU in one session."""
    return int(cast(handle, c_void_p).value or 0)
