"""Which model is used: read at the start, trained anew from time to time, never replaced by a worse one."""

import logging

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.runtime.clock import Clock
from services.optimizer.core.model import Forest, load_forest
from services.optimizer.engine import Engine
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.ports import ProfileStore, Trainer

MAX_LABELLED = 20_000
LEAST_LABELLED = 50
RETRY_S = 600.0
# A model on other runs may score a little less and be no worse.
_TOLERANCE = 0.05

_log = logging.getLogger(__name__)


class ModelKeeper:
    def __init__(
        self, engine: Engine, store: ProfileStore, trainer: Trainer, clock: Clock, metrics: OptimizerMetrics
    ) -> None:
        self._engine = engine
        self._store = store
        self._trainer = trainer
        self._clock = clock
        self._metrics = metrics
        self._labelled = 0

    def use(self, text: bytes | None) -> None:
        """What was kept. A model that can't be read is not used; rules decide until there is another."""
        if text is None:
            return
        try:
            self._take(load_forest(text))
        except InvalidRequestError as error:
            _log.warning("kept model not used", extra={"reason": str(error)})

    async def run(self, interval_s: float) -> None:
        while True:
            done = await self.train()
            await self._clock.sleep(interval_s if done else min(RETRY_S, interval_s))

    async def train(self) -> bool:
        """False if it failed and should be tried again soon."""
        try:
            labelled = await self._store.labelled(MAX_LABELLED)
            enough = len(labelled) >= LEAST_LABELLED and len(labelled) != self._labelled
            if self._engine.forest is not None and not enough:
                return True
            text = await self._trainer.train(labelled if len(labelled) >= LEAST_LABELLED else ())
            forest = load_forest(text)
            if self._is_worse(forest):
                self._metrics.trainings.labels("worse").inc()
                return True
            await self._store.keep_model(text, self._clock.now())
        except GpuloomError as error:
            self._metrics.trainings.labels("failed").inc()
            _log.warning("no model was trained", extra={"reason": str(error)})
            return False
        self._labelled = len(labelled)
        self._take(forest)
        self._metrics.trainings.labels("kept").inc()
        fields = {"runs": forest.trained_on, "macro_f1": round(forest.macro_f1, 3)}
        _log.info("model trained", extra=fields)
        return True

    def _is_worse(self, forest: Forest) -> bool:
        present = self._engine.forest
        return present is not None and forest.macro_f1 < present.macro_f1 - _TOLERANCE

    def _take(self, forest: Forest) -> None:
        self._engine.forest = forest
        self._metrics.macro_f1.set(forest.macro_f1)
