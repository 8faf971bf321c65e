"""Faults on demand: the next calls fail before they act, or act and lose their answer."""

from dataclasses import dataclass, field

from gpuloom.sim.cloud.model import ERRORS, CloudError


class AnswerLostError(Exception):
    """The call has acted; its caller never hears of it."""


@dataclass
class CloudFaults:
    _failures: list[CloudError] = field(default_factory=list)
    _lost_answers: int = 0

    def fail_next(self, code: str, times: int = 1) -> None:
        """The next calls that change something fail with this code and do nothing. KeyError: no such code."""
        self._failures.extend(ERRORS[code](f"{code}, as asked for") for _ in range(times))

    def lose_next_answers(self, times: int = 1) -> None:
        self._lost_answers += times

    def before_acting(self) -> None:
        if self._failures:
            raise self._failures.pop(0)

    def after_acting(self) -> None:
        if self._lost_answers:
            self._lost_answers -= 1
            raise AnswerLostError
