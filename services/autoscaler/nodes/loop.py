"""The leader's loop, as one readable round: handle interruptions, sweep clouds, drain, decide.

One thing after the other, so that every step sees what the step before it wrote.
"""

import logging
from collections.abc import Mapping

from gpuloom.errors import ConflictError, GpuloomError
from gpuloom.model.claims import ClaimState, GpuNodeClaim
from gpuloom.model.policies import CloudProvider
from services.autoscaler.nodes.claim_store import ClaimStore
from services.autoscaler.nodes.drainer import Drainer
from services.autoscaler.nodes.interruptions import Interruptions
from services.autoscaler.nodes.scaler import Scaler
from services.autoscaler.nodes.sweeper import Sweeper, Tools
from services.autoscaler.ports import PriceSource

_log = logging.getLogger(__name__)

PRICES_EVERY_S, PRICES_AGAIN_S = 300.0, 60.0


class NodeLoop:
    def __init__(
        self,
        scaler: Scaler,
        sweepers: Mapping[CloudProvider, Sweeper],
        drainer: Drainer,
        interruptions: Interruptions,
        prices: PriceSource,
        tools: Tools,
    ) -> None:
        self._scaler = scaler
        self._store: ClaimStore = scaler.store
        self._sweepers = sweepers
        self._drainer = drainer
        self._interruptions = interruptions
        self._prices = prices
        self._tools = tools
        self._prices_due_s = dict.fromkeys(sweepers, 0.0)
        self.rounds = 0

    async def run(self, interval_s: float) -> None:
        """Until cancelled. A round that fails is told of, and the next one starts from what is then seen."""
        while True:
            began_s = self._tools.clock.monotonic()
            try:
                await self.round()
            except ConflictError as error:
                _log.info("something changed meanwhile", extra={"error": str(error)})
            except GpuloomError as error:
                self._tools.metrics.errors.inc()
                _log.warning("round failed", extra={"error": str(error)})
            self.rounds += 1
            self._tools.metrics.round_duration.observe(self._tools.clock.monotonic() - began_s)
            await self._tools.clock.sleep(interval_s)

    async def round(self) -> None:
        if self._scaler.unlisted_reason():
            return
        await self._store.protect()
        # Before anybody else is asked: who is slow or silent must not use up a notice.
        await self._interruptions.step(self._store.claims())
        if self._scaler.unready_reason():
            return
        await self._read_prices()
        for provider, sweeper in self._sweepers.items():
            if self._store.caught_up():
                await sweeper.sweep(self._claims_of(provider))
        await self._drain(self._store.claims())
        await self._scaler.round()

    async def _drain(self, claims: list[GpuNodeClaim]) -> None:
        for claim in claims:
            status = claim.status
            if self._scaler.only_tells(claim.spec.pool_name):
                continue
            if status.state is ClaimState.DRAINING and status.node_name and status.draining:
                told = [one.message for one in status.conditions if one.type == "Drained"]
                why = "".join(told[:1]) or "it is given back"
                try:
                    await self._drainer.drain(status.node_name, status.draining, None, why)
                except GpuloomError as error:
                    self._tools.metrics.errors.inc()
                    fields = {"node": status.node_name, "error": str(error)}
                    _log.warning("node not drained", extra=fields)

    def _claims_of(self, provider: CloudProvider) -> list[GpuNodeClaim]:
        pools = {
            pool.name: one.policy.spec.provider
            for one in self._scaler.policies.effective()
            for pool in one.policy.spec.pools
        }
        claims = self._store.claims()
        return [one for one in claims if pools.get(one.spec.pool_name, self._guessed(one)) is provider]

    def _guessed(self, claim: GpuNodeClaim) -> CloudProvider | None:
        """Of a pool whose policy is gone: the only cloud there is, else the one that has its machine."""
        if len(self._sweepers) == 1:
            return next(iter(self._sweepers))
        for provider, sweeper in self._sweepers.items():
            listed = sweeper.view.instances if sweeper.view is not None else ()
            if any(one.instance_id == claim.status.instance_id for one in listed):
                return provider
        return None

    async def _read_prices(self) -> None:
        for provider, sweeper in self._sweepers.items():
            now_s = self._tools.clock.monotonic()
            if now_s < self._prices_due_s[provider]:
                continue
            # A cloud that refuses is not asked again in every round.
            self._prices_due_s[provider] = now_s + PRICES_AGAIN_S
            try:
                self._scaler.offered[provider] = await sweeper.cloud.offerings()
                self._prices_due_s[provider] = now_s + PRICES_EVERY_S
                if provider is not CloudProvider.SIMULATED:
                    told = await self._prices.prices(provider)
                    # Names of machine types differ between clouds, so one's prices never hide another's.
                    self._scaler.prices = {**self._scaler.prices, **told, **self._scaler.given_prices}
            except GpuloomError as error:
                _log.warning("prices can't be read", extra={"provider": provider, "error": str(error)})
