"""Which step comes next on the way from what a GPU is to what it is to be. Pure.

Steps are drawn from what the driver shows, never from how far one believes to have come: after a crash, or a
driver that said more than it did, the next step is right by itself. It never decides whether a change is
allowed; `admission` does.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import GpuLayout, LayoutRequest, Sharing
from gpuloom.model.mig import MigPlacement


class StepKind(StrEnum):
    STOP_SHARING = "stop-sharing"
    DESTROY = "destroy"
    SET_MODE = "set-mode"
    CREATE = "create"
    START_SHARING = "start-sharing"


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    placement: MigPlacement | None = None
    enabled: bool | None = None
    sharing: Sharing | None = None

    def __str__(self) -> str:
        if self.placement is not None:
            return f"{self.kind} {self.placement.profile} at {self.placement.start}"
        if self.enabled is not None:
            return f"switch MIG mode {'on' if self.enabled else 'off'}"
        return self.kind.value


@dataclass(frozen=True, slots=True)
class Goal:
    """What a GPU is to be. None: whatever it is. Instances that are in neither set are left alone."""

    enabled: bool | None = None
    absent: frozenset[MigPlacement] = frozenset()
    present: frozenset[MigPlacement] = frozenset()
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """A GPU as it was when a change began: what is to be restored if it fails."""

    enabled: bool
    placements: frozenset[MigPlacement]
    sharing: Sharing


def before_of(layout: GpuLayout) -> Before:
    """An instance that nobody can use is nothing to be restored."""
    return Before(layout.mig_enabled, layout.usable, layout.sharing)


def forward_goal(request: LayoutRequest, before: Before) -> Goal:
    """Also what the change leaves alone is to be there: a boot in the middle of it takes everything."""
    create = frozenset(request.create)
    absent = frozenset(request.destroy) - create
    cut = request.mig_enabled is not False
    kept = before.placements - absent if cut else frozenset()
    # A cut GPU is shared by its slices.
    sharing = Sharing() if request.mig_enabled and request.sharing is None else request.sharing
    enabled = (before.enabled or None) if request.mig_enabled is None else request.mig_enabled
    return Goal(enabled, absent, kept | create, before.sharing if sharing is None else sharing)


def backward_goal(request: LayoutRequest, before: Before) -> Goal:
    """What was there is to be there again, and what was made is to go."""
    return Goal(
        enabled=before.enabled if request.mig_enabled is not None else before.enabled or None,
        absent=frozenset(request.create) - before.placements,
        present=before.placements,
        sharing=before.sharing,
    )


def next_step(layout: GpuLayout, goal: Goal) -> Step | None:
    """None if the GPU is as it is to be."""
    return _undo(layout, goal) or _switch(layout, goal) or _make(layout, goal)


def _undo(layout: GpuLayout, goal: Goal) -> Step | None:
    if goal.sharing is not None and layout.sharing not in (goal.sharing, Sharing()):
        return Step(StepKind.STOP_SHARING)
    for placement in sorted(layout.placements):
        if placement in goal.absent:
            return Step(StepKind.DESTROY, placement)
    return None


def _switch(layout: GpuLayout, goal: Goal) -> Step | None:
    if goal.enabled is None or goal.enabled == layout.mig_enabled:
        return None
    return Step(StepKind.SET_MODE, enabled=goal.enabled)


def _make(layout: GpuLayout, goal: Goal) -> Step | None:
    for placement in sorted(goal.present):
        if placement not in layout.usable:
            return Step(StepKind.CREATE, placement)
    wanted = goal.sharing
    if wanted is not None and wanted.mode is not SharingMode.NONE and layout.sharing != wanted:
        return Step(StepKind.START_SHARING, sharing=wanted)
    return None
