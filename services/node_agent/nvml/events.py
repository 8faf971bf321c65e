"""Waits for the driver's error events in a thread of its own, and keeps them until they are fetched.

It decides nothing about them. An error of the wait itself is no error of a GPU: it is tried again.
"""

import threading
from collections import deque
from ctypes import c_void_p, cast
from dataclasses import dataclass

from services.node_agent.nvml.binding import Handle, NvmlError, code_of, nvml, optional
from services.node_agent.nvml.failure import TIMEOUT
from services.node_agent.nvml.processes import instance_number

_PAUSE_S = 1.0
_STOP_S = 2.0
# Only the last error of each kind matters, so the oldest may go if nobody fetches them.
_MAX_EVENTS = 1024


@dataclass(frozen=True, slots=True)
class XidEvent:
    """`instance` is the driver's number of the MIG instance it happened on, None for the whole GPU."""

    gpu_uuid: str
    xid: int
    instance: int | None = None


class EventWatcher:
    """Made, used and stopped in threads that may block; only `take` is for the event loop."""

    def __init__(self, wait_s: float) -> None:
        """A wait takes up to `wait_s`, and so does the end. Raise NvmlError if the driver has no events."""
        self._wait_ms = max(1, int(wait_s * 1000))
        self._set = nvml.nvmlEventSetCreate()
        self._uuids: dict[int, str] = {}
        self._events: deque[XidEvent] = deque(maxlen=_MAX_EVENTS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nvml-events", daemon=True)
        self._thread.start()

    def register(self, handle: Handle, uuid: str) -> None:
        """Cards without such events are left out. Raise NvmlError if the GPU is gone."""
        self._uuids[_address(handle)] = uuid
        optional(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, self._set)

    def take(self) -> list[XidEvent]:
        return [self._events.popleft() for _ in range(len(self._events))]

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
                if code_of(error) != TIMEOUT:
                    self._stopped.wait(_PAUSE_S)
                continue
            uuid = self._uuids.get(_address(event.device))
            if uuid is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                instance = instance_number(event.gpuInstanceId)
                self._events.append(XidEvent(uuid, int(event.eventData), instance))


def optional_free(event_set: Handle) -> None:
    try:
        nvml.nvmlEventSetFree(event_set)
    except NvmlError:
        # The session it belonged to is gone, and the set with it.
        return


def _address(handle: Handle) -> int:
    """Handles are made anew by each call, but point to the same place for the same GPU in one session."""
    return int(cast(handle, c_void_p).value or 0)
