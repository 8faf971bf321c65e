"""What the optimizer needs from outside."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuloom.kube.objects import JsonObject
from gpuloom.model.optimization import AppliedRecommendation
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.usage import UsageCursor
from services.optimizer.core.predict import Outcome
from services.optimizer.core.run import Run
from services.optimizer.core.workload import Workload


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run with the workload that it is of."""

    run: Run
    workload: Workload


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """A run that ended, whose pod said what kind of work it was."""

    features: tuple[float, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Everything:
    """What is kept, as it is read at the start."""

    cursors: tuple[UsageCursor, ...]
    running: tuple[KeptRun, ...]
    ended: tuple[tuple[Workload, Outcome], ...]
    model: bytes | None


class ProfileStore(Protocol):
    """All methods raise a GpuloomError if the database does not do it."""

    async def load(self) -> Everything: ...

    async def keep_windows(self, runs: Sequence[KeptRun], cursor: UsageCursor) -> None:
        """In one transaction."""

    async def end_runs(self, runs: Sequence[tuple[KeptRun, Outcome, LabelledRun | None]]) -> None:
        """They are over: what counts from now on is how they went."""

    async def keep_model(self, text: bytes, at: datetime) -> None: ...

    async def labelled(self, limit: int) -> Sequence[LabelledRun]:
        """The latest."""

    async def forget(self, before: datetime) -> None:
        """Drop what is older, cursors of spools that nobody reads any more among it."""

    async def keep_advice(self, advice: "Advice") -> None: ...

    async def advice(self) -> dict[str, "Advice"]:
        """By owner key: what was recommended last, and whether it was followed."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What was recommended for a workload. `applied_at` None: nobody followed it yet.

    `saved_gpus` is by how much one pod would hold less.
    """

    owner_key: str
    before: str
    after: str
    given_at: datetime
    saved_gpus: float = 0.0
    expected_nano_usd: int | None = None
    applied_at: datetime | None = None
    actual_nano_usd: int | None = None

    def as_applied(self) -> AppliedRecommendation | None:
        if self.applied_at is None:
            return None
        return AppliedRecommendation(
            self.applied_at, self.before, self.after, self.expected_nano_usd, self.actual_nano_usd
        )


class Prices(Protocol):
    def nano_usd_per_gpu_hour(self, facts: NodeFacts) -> int | None:
        """Of one card of that node; None if no price is known. Never 0."""

    hours_per_month: int


class Manifests(Protocol):
    async def manifest(self, workload: Workload) -> JsonObject | None:
        """The Job's or the bare pod's own; None if it is gone."""


class Trainer(Protocol):
    async def train(self, labelled: Iterable[LabelledRun]) -> bytes:
        """A model as JSON. Raise UnavailableError if the training failed."""
