"""What signals and a stuck shutdown do to the process.

The first SIGTERM or SIGINT asks for a stop, the second ends the process at once. Whatever happens after a
stop began, the process ends within its limit: by `os._exit`, because nothing else gets past a thread or a
task that hangs.
"""

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

EXIT_FORCED = 1
EXIT_SECOND_SIGNAL = 130


class ExitTimer:
    """Ends the process if it is still there limit_s after the first start()."""

    def __init__(self, service: str, limit_s: float) -> None:
        self._service = service
        self._limit_s = limit_s
        # Starting a thread, or setting an Event, from a signal handler can deadlock with the code that the
        # signal interrupted. Putting into a SimpleQueue cannot, so the thread waits for that.
        self._started: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="exit timer", daemon=True).start()

    def start(self) -> None:
        self._started.put(None)

    def _watch(self) -> None:
        self._started.get()
        time.sleep(self._limit_s)
        end_process(EXIT_FORCED, f"{self._service}: did not stop within {self._limit_s:g} s, ended by force")


def stop_on_signals(service: str, stop: asyncio.Event, on_first: Callable[[], None]) -> None:
    """Handle SIGTERM and SIGINT from now on. Call it from the running loop in the main thread."""
    loop = asyncio.get_running_loop()
    asked = False

    # Not loop.add_signal_handler: the second signal must work even while the loop is blocked.
    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked or loop.is_closed():
            end_process(EXIT_SECOND_SIGNAL, f"{service}: ended at once by a second signal")
        asked = True
        on_first()
        loop.call_soon_threadsafe(stop.set)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def end_process(code: int, reason: str) -> None:
    # os.write, because the handler may have interrupted a write to sys.stderr that holds its lock.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, (reason + "\n").encode())
    os._exit(code)
