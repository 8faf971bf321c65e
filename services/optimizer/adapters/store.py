"""Profiles in SQL. One statement of each kind for both databases."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from gpuloom.model.usage import UsageCursor
from gpuloom.runtime.clock import Clock
from gpuloom.store.database import Database
from gpuloom.store.migrations import Migrations
from services.optimizer.core.predict import Outcome
from services.optimizer.core.run import Run, run_from_json, run_to_json
from services.optimizer.core.sketch import QUANTITIES, extended, values_of
from services.optimizer.core.workload import Workload, workload_from_json, workload_to_json
from services.optimizer.ports import Advice, Everything, KeptRun, LabelledRun

MIGRATIONS = Migrations("optimizer", Path(__file__).parent.parent / "migrations")
MAX_OUTCOMES = 50_000
KEPT_MODELS = 3

Kept = TypeVar("Kept")

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_PUT_CURSOR = text(
    "INSERT INTO optimizer_cursors (spool_id, node_uid, sequence, kept_at) "
    "VALUES (:spool_id, :node_uid, :sequence, :kept_at) ON CONFLICT (spool_id) DO UPDATE SET "
    "node_uid = excluded.node_uid, sequence = excluded.sequence, kept_at = excluded.kept_at"
)
_PUT_RUN = text(
    "INSERT INTO optimizer_runs (pod_uid, workload, signature, started_at, seen_until, sums) "
    "VALUES (:pod_uid, :workload, :signature, :started_at, :seen_until, :sums) "
    "ON CONFLICT (pod_uid) DO UPDATE SET workload = excluded.workload, signature = excluded.signature, "
    "seen_until = excluded.seen_until, sums = excluded.sums"
)
_PUT_OUTCOME = text(
    "INSERT INTO optimizer_outcomes (pod_uid, signature, ended_at, workload, outcome, features, label) "
    "VALUES (:pod_uid, :signature, :ended_at, :workload, :outcome, :features, :label) "
    "ON CONFLICT (pod_uid) DO NOTHING"
)
_PUT_SKETCH = text(
    "INSERT INTO optimizer_sketches (signature, quantity, runs, updated_at, sketch) "
    "VALUES (:signature, :quantity, :runs, :updated_at, :sketch) ON CONFLICT (signature, quantity) "
    "DO UPDATE SET runs = excluded.runs, updated_at = excluded.updated_at, sketch = excluded.sketch"
)
_PUT_ADVICE = text(
    "INSERT INTO optimizer_advice (owner_key, given_at, advice) VALUES (:owner_key, :given_at, :advice) "
    "ON CONFLICT (owner_key) DO UPDATE SET given_at = excluded.given_at, advice = excluded.advice"
)


class SqlStore:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def load(self) -> Everything:
        return await self._database.read(_load)

    async def keep_windows(self, runs: Sequence[KeptRun], cursor: UsageCursor) -> None:
        rows = [_run_row(kept) for kept in runs]
        at = _micros(self._clock.now())

        def work(session: Session) -> None:
            for row in rows:
                session.execute(_PUT_RUN, row)
            session.execute(
                _PUT_CURSOR,
                {
                    "spool_id": cursor.spool_id,
                    "node_uid": cursor.node_uid,
                    "sequence": cursor.sequence,
                    "kept_at": at,
                },
            )

        await self._database.write(work)

    async def end_runs(self, runs: Sequence[tuple[KeptRun, Outcome, LabelledRun | None]]) -> None:
        at = _micros(self._clock.now())

        def work(session: Session) -> None:
            for kept, outcome, labelled in runs:
                done = session.execute(_PUT_OUTCOME, _outcome_row(kept, outcome, labelled))
                session.execute(
                    text("DELETE FROM optimizer_runs WHERE pod_uid = :uid"), {"uid": kept.run.pod_uid}
                )
                if getattr(done, "rowcount", 1):
                    _extend_sketches(session, kept.workload.signature.key, outcome, at)

        await self._database.write(work)

    async def keep_model(self, model: bytes, at: datetime) -> None:
        def work(session: Session) -> None:
            session.execute(
                text("INSERT INTO optimizer_models (kept_at, model) VALUES (:at, :model)"),
                {"at": _micros(at), "model": model},
            )
            old = text("SELECT kept_at FROM optimizer_models ORDER BY kept_at DESC")
            for row in session.execute(old).all()[KEPT_MODELS:]:
                session.execute(text("DELETE FROM optimizer_models WHERE kept_at = :at"), {"at": row.kept_at})

        await self._database.write(work)

    async def labelled(self, limit: int) -> Sequence[LabelledRun]:
        statement = text(
            "SELECT features, label FROM optimizer_outcomes WHERE label IS NOT NULL AND features IS NOT NULL "
            "ORDER BY ended_at DESC LIMIT :limit"
        )
        rows = await self._database.read(lambda session: session.execute(statement, {"limit": limit}).all())
        return _readable(
            rows, lambda row: LabelledRun(tuple(map(float, json.loads(row.features))), row.label)
        )

    async def forget(self, before: datetime) -> None:
        """Cursors too: a spool is shorter than any retention, so nobody reads on where they stand."""

        def work(session: Session) -> None:
            for table, column in (
                ("outcomes", "ended_at"),
                ("runs", "seen_until"),
                ("cursors", "kept_at"),
                ("sketches", "updated_at"),
                ("advice", "given_at"),
            ):
                session.execute(
                    text(f"DELETE FROM optimizer_{table} WHERE {column} < :before"),  # noqa: S608 - ours
                    {"before": _micros(before)},
                )

        await self._database.write(work)

    async def keep_advice(self, advice: Advice) -> None:
        row = {
            "owner_key": advice.owner_key,
            "given_at": _micros(advice.given_at),
            "advice": json.dumps(_advice_to_json(advice)),
        }
        await self._database.write(lambda session: session.execute(_PUT_ADVICE, row))

    async def advice(self) -> dict[str, Advice]:
        rows = await self._database.read(
            lambda session: session.execute(
                text("SELECT owner_key, given_at, advice FROM optimizer_advice")
            ).all()
        )
        given = _readable(rows, lambda row: _advice(row.owner_key, row.given_at, json.loads(row.advice)))
        return {advice.owner_key: advice for advice in given}

    async def sketches(self) -> dict[str, dict[str, tuple[int, bytes]]]:
        """Runs and sketch by signature and quantity."""
        statement = text("SELECT signature, quantity, runs, sketch FROM optimizer_sketches")
        found: dict[str, dict[str, tuple[int, bytes]]] = {}
        for row in await self._database.read(lambda session: session.execute(statement).all()):
            found.setdefault(row.signature, {})[row.quantity] = (int(row.runs), bytes(row.sketch))
        return found


def _load(session: Session) -> Everything:
    cursors = session.execute(text("SELECT node_uid, spool_id, sequence FROM optimizer_cursors")).all()
    runs = session.execute(
        text("SELECT pod_uid, workload, signature, started_at, seen_until, sums FROM optimizer_runs")
    ).all()
    outcomes = session.execute(
        text("SELECT workload, outcome FROM optimizer_outcomes ORDER BY ended_at DESC LIMIT :limit"),
        {"limit": MAX_OUTCOMES},
    ).all()
    model = session.execute(text("SELECT model FROM optimizer_models ORDER BY kept_at DESC LIMIT 1")).first()
    return Everything(
        cursors=tuple(UsageCursor(row.node_uid, row.spool_id, int(row.sequence)) for row in cursors),
        running=tuple(_readable(runs, _kept_run)),
        # The latest come last, as they came.
        ended=tuple(_readable(reversed(outcomes), _outcome)),
        model=None if model is None else bytes(model.model),
    )


def _readable(rows: Iterable[Any], read: Callable[[Any], Kept]) -> list[Kept]:
    """Without those that hold something else: less is known then, and no start fails on them."""
    found: list[Kept] = []
    spoiled = 0
    for row in rows:
        try:
            found.append(read(row))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            spoiled += 1
    if spoiled:
        _log.warning("rows of profiles can't be read and are left out", extra={"rows": spoiled})
    return found


def _extend_sketches(session: Session, signature: str, outcome: Outcome, at: int) -> None:
    values = values_of(outcome)
    for quantity in QUANTITIES:
        value = values[quantity]
        if value is None:
            continue
        known = session.execute(
            text(
                "SELECT runs, sketch FROM optimizer_sketches WHERE signature = :key AND quantity = :quantity"
            ),
            {"key": signature, "quantity": quantity},
        ).first()
        sketch = extended(None if known is None else bytes(known.sketch), [value])
        row = {
            "signature": signature,
            "quantity": quantity,
            "runs": 1 if known is None else int(known.runs) + 1,
            "updated_at": at,
            "sketch": sketch,
        }
        session.execute(_PUT_SKETCH, row)


def _run_row(kept: KeptRun) -> dict[str, Any]:
    run = kept.run
    return {
        "pod_uid": run.pod_uid,
        "workload": json.dumps(workload_to_json(kept.workload)),
        "signature": run.signature,
        "started_at": _micros(run.started_at),
        "seen_until": _micros(run.seen_until),
        "sums": json.dumps(run_to_json(run)),
    }


def _kept_run(row: Any) -> KeptRun:
    run = Run(row.pod_uid, row.signature, _moment(row.started_at), _moment(row.seen_until))
    return KeptRun(run_from_json(run, json.loads(row.sums)), workload_from_json(json.loads(row.workload)))


def _outcome_row(kept: KeptRun, outcome: Outcome, labelled: LabelledRun | None) -> dict[str, Any]:
    sums = {
        "memory": outcome.memory_mib,
        "utilization": outcome.utilization,
        "duration": outcome.duration_s,
        "mean": outcome.mean_ratio,
        "power": outcome.power_w,
        "burstiness": outcome.burstiness,
        "uid": outcome.pod_uid,
        "endedAt": _micros(outcome.ended_at),
    }
    return {
        "pod_uid": outcome.pod_uid,
        "signature": kept.workload.signature.key,
        "ended_at": _micros(outcome.ended_at),
        "workload": json.dumps(workload_to_json(kept.workload)),
        "outcome": json.dumps(sums),
        "features": None if labelled is None else json.dumps(labelled.features),
        "label": None if labelled is None else labelled.label,
    }


def _outcome(row: Any) -> tuple[Workload, Outcome]:
    sums: Mapping[str, Any] = json.loads(row.outcome)
    outcome = Outcome(
        pod_uid=str(sums["uid"]),
        ended_at=_moment(sums["endedAt"]),
        memory_mib=_amount(sums["memory"]),
        utilization=_amount(sums["utilization"]),
        duration_s=_amount(sums["duration"]),
        mean_ratio=_amount(sums["mean"]),
        power_w=_amount(sums["power"]),
        burstiness=float(sums["burstiness"]),
    )
    return workload_from_json(json.loads(row.workload)), outcome


def _amount(told: Any) -> float | None:
    return None if told is None else float(told)


def _advice_to_json(advice: Advice) -> dict[str, Any]:
    return {
        "before": advice.before,
        "after": advice.after,
        "savedGpus": advice.saved_gpus,
        "expected": advice.expected_nano_usd,
        "appliedAt": None if advice.applied_at is None else _micros(advice.applied_at),
        "actual": advice.actual_nano_usd,
    }


def _advice(owner_key: str, given_at: int, document: Mapping[str, Any]) -> Advice:
    applied = document["appliedAt"]
    return Advice(
        owner_key=owner_key,
        before=str(document["before"]),
        after=str(document["after"]),
        given_at=_moment(given_at),
        saved_gpus=float(document["savedGpus"]),
        expected_nano_usd=document["expected"],
        applied_at=None if applied is None else _moment(applied),
        actual_nano_usd=document["actual"],
    )


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=int(micros))
