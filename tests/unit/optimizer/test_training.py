"""The process that trains fails in every way: rules or the present model decide on."""

import asyncio
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import FakeClock
from services.optimizer.adapters.trainer import TIMEOUT_S, ChildTrainer
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.model_keeper import ModelKeeper
from services.optimizer.ports import LabelledRun
from tests.mesh.waiting import until
from tests.unit.optimizer.builders import NOON

MANY = [LabelledRun(tuple(map(float, range(14))), "training")] * 5000
"""More than a pipe holds."""


class Kept:
    async def labelled(self, limit: int) -> list[LabelledRun]:
        return MANY[:limit]


class Judging:
    forest = None


def a_child(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str | None) -> ChildTrainer:
    child = folder / "child"
    if script is not None:
        child.write_text(f"#!/bin/sh\n{script}\n")
        child.chmod(0o700)
    monkeypatch.setattr("services.optimizer.adapters.trainer.sys.executable", str(child))
    return ChildTrainer(1, FakeClock(NOON))


@pytest.mark.parametrize(
    "script",
    [None, "kill -9 $$", "exit 3", "cat >&2", "cat > /dev/null; echo '{}'", "head -c 9000000 /dev/zero"],
)
async def test_a_child_that_fails_leaves_what_there_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None
) -> None:
    trainer, judging = a_child(monkeypatch, tmp_path, script), Judging()
    metrics = OptimizerMetrics(CollectorRegistry())
    keeper = ModelKeeper(judging, Kept(), trainer, FakeClock(NOON), metrics)  # type: ignore[arg-type]

    done = await keeper.train()

    assert (done, judging.forest) == (False, None)


async def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    trainer = a_child(monkeypatch, tmp_path, f"echo $$ > {told}; exec sleep 600")

    training = asyncio.create_task(trainer.train(MANY))
    await until(lambda: told.exists() and bool(told.read_text()))
    await trainer._clock.advance(TIMEOUT_S + 1)  # type: ignore[attr-defined]

    with pytest.raises(UnavailableError, match="took longer"):
        await training
    child = int(await asyncio.to_thread(told.read_text))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
