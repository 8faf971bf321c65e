"""How long to hold and how far ahead to look, learned from how this target's need came and went.

Both are chosen together, by trying them on the past: each pair is what would have been held at every moment,
and what then was missing one cold start later. A replica that is missing costs as much as many that are idle.
A forecast only ever raises the floor. Deterministic, and causal: a moment is judged by what came before it.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.autoscaler.inference.core.adaptive import Learned

Needs = npt.NDArray[np.float64]

HOLDS_S = (60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
QUANTILES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
FIRST_HOLD_S = 600.0
FIRST_HEADROOM = 0.25
"""Before there is a past: so much of the need beside it."""
MISSING_COSTS = 80.0
"""A replica that is missing costs as much as so many that are idle."""
KEPT_S = 6 * 3600.0
EVERY_S = 300.0
LATELY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Habit:
    """How long to hold, and how large a rise within a cold start to be ready for; None: not learned."""

    hold_s: float = FIRST_HOLD_S
    rise: float | None = None


@dataclass(slots=True)
class NeedHistory:
    """Needs in equal steps, oldest first, and what was learned of them. One for each target."""

    step_s: float
    missing_costs: float = MISSING_COSTS
    needs: deque[float] = field(default_factory=deque)
    habit: Habit = field(default_factory=Habit)
    _learned_at: int = 0
    _seen: int = 0

    def add(self, need: float) -> None:
        self.needs.append(max(0.0, need))
        self._seen += 1
        while len(self.needs) > KEPT_S / self.step_s:
            self.needs.popleft()

    def learned(self, cold_start_s: float) -> Learned:
        """What to hold now. Learns anew every few minutes."""
        if not self.needs:
            return Learned(cold_start_s=cold_start_s)
        if self._seen - self._learned_at >= EVERY_S / self.step_s:
            self._learned_at = self._seen
            self.habit = learn(np.asarray(self.needs), self.step_s, cold_start_s, self.missing_costs)
        steps = max(1, round(self.habit.hold_s / self.step_s))
        held = max(list(self.needs)[-steps:])
        rise = held * FIRST_HEADROOM if self.habit.rise is None else self.habit.rise
        lately = max(list(self.needs)[-max(1, round(LATELY_S / self.step_s)) :])
        floor = held + rise if held > 0.0 else 0.0
        return Learned(held, floor, self.habit.hold_s, cold_start_s, lately)


def learn(needs: Needs, step_s: float, cold_start_s: float, missing_costs: float = MISSING_COSTS) -> Habit:
    """The cheapest pair on this past; the first habit while the past is too short to tell."""
    ahead = max(1, round(cold_start_s / step_s))
    if len(needs) < 4 * ahead + EVERY_S / step_s:
        return Habit()
    rises = np.maximum(0.0, highest_ahead(needs, ahead) - needs[:-ahead])
    best, best_cost = Habit(), np.inf
    for quantile in QUANTILES:
        rise = float(np.quantile(rises, quantile)) if quantile > 0.0 else 0.0
        ready_for = np.where(needs > 0.0, needs + rise, 0.0)
        for hold_s in HOLDS_S:
            held = np.ceil(highest_before(ready_for, max(1, round(hold_s / step_s))))
            missing = np.maximum(0.0, np.ceil(needs[ahead:]) - held[:-ahead])
            cost = float(held.sum() + missing_costs * missing.sum())
            if cost < best_cost:
                best, best_cost = Habit(hold_s, rise), cost
    return best


def highest_before(needs: Needs, steps: int) -> Needs:
    """Of each moment, the highest of the last so many."""
    padded = np.concatenate([np.zeros(steps - 1), needs])
    found: Needs = np.lib.stride_tricks.sliding_window_view(padded, steps).max(axis=1)
    return found


def highest_ahead(needs: Needs, steps: int) -> Needs:
    """Of each moment but the last so many, the highest of those that follow."""
    found: Needs = np.lib.stride_tricks.sliding_window_view(needs[1:], steps).max(axis=1)
    return found
