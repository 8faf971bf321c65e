"""History in SQL: samples by name and minute, and actions. One transaction each."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session

from gpuloom.model.policies import ScaleDirection, ScalingAction
from gpuloom.store.database import Database
from gpuloom.store.migrations import Migrations
from services.autoscaler.core.forecasting.series import Sample
from services.autoscaler.core.scaling.policy_status import Taken

MIGRATIONS = Migrations("autoscaler", Path(__file__).parent / "migrations")

_UPSERT = text(
    "INSERT INTO autoscaler_sample (name, time_s, value) VALUES (:name, :time_s, :value)"
    " ON CONFLICT (name, time_s) DO UPDATE SET value = excluded.value"
)
_READ = text("SELECT time_s, value FROM autoscaler_sample WHERE name = :name AND time_s >= :since ORDER BY 1")
_FORGET = text("DELETE FROM autoscaler_sample WHERE time_s < :before")
_ADD_ACTION = text(
    "INSERT INTO autoscaler_action (time_s, policy, document) VALUES (:time_s, :policy, :document)"
    " ON CONFLICT (time_s, policy) DO NOTHING"
)
_READ_ACTIONS = text("SELECT document FROM autoscaler_action ORDER BY time_s DESC LIMIT :limit")


class SqlHistory:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, samples: Sequence[Sample]) -> None:
        rows = [
            {"name": one.name, "time_s": int(one.time.timestamp()), "value": one.value} for one in samples
        ]

        def work(session: Session) -> None:
            if rows:
                session.execute(_UPSERT, rows)

        await self._database.write(work)

    async def read(self, name: str, since: datetime) -> list[Sample]:
        parameters = {"name": name, "since": int(since.timestamp())}

        def work(session: Session) -> list[Sample]:
            found = session.execute(_READ, parameters)
            return [Sample(name, datetime.fromtimestamp(time_s, UTC), value) for time_s, value in found]

        return await self._database.read(work)

    async def forget(self, before: datetime) -> int:
        parameters = {"before": int(before.timestamp())}

        def work(session: Session) -> int:
            return int(session.execute(_FORGET, parameters).rowcount)  # type: ignore[attr-defined]

        return await self._database.write(work)

    async def add_action(self, taken: Taken) -> None:
        action = taken.action
        document = {
            "type": action.type.value,
            "time": action.time.isoformat(),
            "pool": action.pool,
            "count": action.count,
            "reason": action.reason,
            "claims": taken.claims,
            "nano": taken.nano_usd_per_hour,
        }
        row = {
            "time_s": action.time.timestamp(),
            "policy": taken.policy,
            "document": orjson.dumps({**document, "policy": taken.policy}).decode(),
        }

        def work(session: Session) -> None:
            session.execute(_ADD_ACTION, row)

        await self._database.write(work)

    async def actions(self, limit: int) -> list[Taken]:
        """Newest first."""

        def work(session: Session) -> list[str]:
            return [row[0] for row in session.execute(_READ_ACTIONS, {"limit": limit})]

        return [_taken(orjson.loads(one)) for one in await self._database.read(work)]


def _taken(document: dict[str, object]) -> Taken:
    action = ScalingAction(
        ScaleDirection(str(document["type"])),
        datetime.fromisoformat(str(document["time"])),
        None if document["pool"] is None else str(document["pool"]),
        int(str(document["count"])),
        str(document["reason"]),
    )
    claims = document["claims"]
    names = tuple(map(str, claims)) if isinstance(claims, list) else ()
    return Taken(str(document["policy"]), action, names, int(str(document["nano"])))
