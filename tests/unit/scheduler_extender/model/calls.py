"""Work of the real extender that stops at every call to Kubernetes, until a test lets it go on."""

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from gpuloom.errors import GpuloomError
from gpuloom.kube.client import PodBinding


@dataclass
class Call:
    """One call to Kubernetes. `act` is what the server does with it."""

    act: Callable[[], Any]
    binding: PodBinding | None = None
    sent_s: float = 0.0
    acted: bool = False
    answer: Any = None
    error: GpuloomError | None = None

    def __await__(self) -> Generator["Call", None, Any]:
        yield self
        if self.error is not None:
            raise self.error
        return self.answer

    def serve(self) -> None:
        if self.acted:
            return
        self.acted = True
        try:
            self.answer = self.act()
        except GpuloomError as error:
            self.error = error

    def refuse(self, error: GpuloomError) -> None:
        """The server says so without having acted."""
        if not self.acted:
            self.acted, self.error = True, error


class Task:
    """Work under way. `waits_for` is the call it stands at, `answer` what it said in the end."""

    def __init__(self, coroutine: Coroutine[Any, None, Any]) -> None:
        self._coroutine = coroutine
        self.waits_for: Call | None = None
        self.answer: str | None = None
        self.go_on()

    def go_on(self) -> None:
        """The answer of the call has arrived."""
        try:
            self.waits_for = self._coroutine.send(None)
        except StopIteration as done:
            self.waits_for, self.answer = None, str(done.value)

    def give_up_waiting(self, error: GpuloomError) -> Call:
        """The caller sees an error; the call may still act."""
        call = self.waits_for
        assert call is not None
        try:
            self.waits_for = self._coroutine.throw(error)
        except StopIteration as done:
            self.waits_for, self.answer = None, str(done.value)
        return call

    def kill(self) -> Call | None:
        self._coroutine.close()
        return self.waits_for
