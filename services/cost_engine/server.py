"""The cost engine's gRPC service: decode, ask, encode."""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence

from gpuloom.codec.cost import (
    amounts_to_proto,
    budget_to_proto,
    gap_to_proto,
    line_to_proto,
    node_price_to_proto,
    price_to_proto,
    question_from_proto,
    savings_to_proto,
    summary_to_proto,
    time_from_proto,
    time_to_proto,
    verdict_to_proto,
)
from gpuloom.errors import ConflictError, InvalidRequestError, NotReadyError
from gpuloom.model import cost as model
from gpuloom.runtime.clock import Clock
from gpuloom.v1 import cost_engine_pb2 as pb
from gpuloom.v1.cost_engine_pb2_grpc import CostEngineServiceServicer
from services.cost_engine.alerts.budgets import Budgets
from services.cost_engine.api.exports import Exports
from services.cost_engine.api.queries import Queries, moment
from services.cost_engine.core.prices import PriceBook
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.prices.refresher import Prices
from services.cost_engine.store.store import CostStore

_CLI = frozenset({"cli"})
_PEOPLE = frozenset({"console", "cli"})
ALLOWED_CALLERS = {
    "QueryCosts": _PEOPLE,
    "GetCostSummary": _PEOPLE,
    "GetSavings": _PEOPLE,
    "ListPrices": frozenset({"optimizer", "autoscaler", "mig_controller", "cli"}),
    "ListBudgets": _PEOPLE,
    "ListBudgetVerdicts": frozenset({"scheduler_extender", "cli"}),
    "ExportCosts": _CLI,
}
SERVICE = pb.DESCRIPTOR.services_by_name["CostEngineService"]
MAX_PAGE = 5000
_MARK_LENGTH = 16
_STEPS = {pb.COST_STEP_HOUR: "hour", pb.COST_STEP_DAY: "day"}
_FORMATS = {pb.EXPORT_FORMAT_JSON: "json", pb.EXPORT_FORMAT_FOCUS: "focus"}


class CostEngineServer(CostEngineServiceServicer):
    def __init__(
        self,
        queries: Queries,
        exports: Exports,
        budgets: Budgets,
        prices: tuple[Prices, CostStore, Clock],
        leads: Callable[[], bool],
    ) -> None:
        self._queries = queries
        self._exports = exports
        self._budgets = budgets
        self._prices, self._store, self._clock = prices
        self._leads = leads

    async def QueryCosts(self, request: pb.QueryCostsRequest, context: object) -> pb.QueryCostsResponse:
        first, read = _place(request.page_token)
        size = min(request.page_size or MAX_PAGE, MAX_PAGE)
        answer = await self._queries.costs(question_from_proto(request))
        page = answer.lines[first : first + size]
        mark = _mark(answer.lines) if len(answer.lines) > size or first else ""
        if first and mark != read:
            raise ConflictError("costs were computed anew while they were read: ask from the first part on")
        return pb.QueryCostsResponse(
            rows=map(line_to_proto, page),
            total=amounts_to_proto(answer.total),
            next_page_token=f"{first + size}.{mark}" if first + size < len(answer.lines) else "",
            start=time_to_proto(moment(answer.window.start_ns)),
            end=time_to_proto(moment(answer.window.end_ns)),
            reconciled=answer.reconciled,
            computed_until=time_to_proto(answer.computed_until),
            gaps=map(gap_to_proto, answer.gaps if first == 0 else ()),
            currency="USD",
        )

    async def GetCostSummary(
        self, request: pb.GetCostSummaryRequest, context: object
    ) -> pb.GetCostSummaryResponse:
        return summary_to_proto(await self._queries.summary(await self._book()))

    async def GetSavings(self, request: pb.GetSavingsRequest, context: object) -> pb.GetSavingsResponse:
        start = time_from_proto(request.start) if request.HasField("start") else None
        end = time_from_proto(request.end) if request.HasField("end") else None
        return savings_to_proto(await self._queries.savings(start, end))

    async def ListPrices(self, request: pb.ListPricesRequest, context: object) -> pb.ListPricesResponse:
        now, wanted = now_ns(self._clock), frozenset(request.instance_types)
        found = [
            model.PriceEntry(
                price.provider,
                price.region,
                price.zone,
                price.instance_type,
                price.capacity_type,
                price.nano_usd_per_hour,
                price.source,
                moment(price.fetched_at_ns) if price.fetched_at_ns else None,
            )
            for price in await self._store.prices()
            if price.holds_at(now)
            and request.provider in ("", price.provider)
            and request.region in ("", price.region)
            and (not wanted or price.instance_type in wanted)
        ]
        found.sort(key=lambda one: (one.provider, one.region, one.zone, one.instance_type, one.capacity_type))
        nodes, missing = await self._queries.node_prices(await self._book())
        return pb.ListPricesResponse(
            prices=map(price_to_proto, found), missing=missing, nodes=map(node_price_to_proto, nodes)
        )

    async def ListBudgets(self, request: pb.ListBudgetsRequest, context: object) -> pb.ListBudgetsResponse:
        self._require_leader()
        return pb.ListBudgetsResponse(budgets=map(budget_to_proto, self._budgets.reports()))

    async def ListBudgetVerdicts(
        self, request: pb.ListBudgetVerdictsRequest, context: object
    ) -> pb.ListBudgetVerdictsResponse:
        self._require_leader()
        return pb.ListBudgetVerdictsResponse(verdicts=map(verdict_to_proto, self._budgets.verdicts()))

    async def ExportCosts(
        self, request: pb.ExportCostsRequest, context: object
    ) -> AsyncIterator[pb.ExportCostsResponse]:
        question = model.CostQuestion(
            start=time_from_proto(request.start) if request.HasField("start") else None,
            end=time_from_proto(request.end) if request.HasField("end") else None,
            step=_STEPS.get(request.step, "day"),
        )
        async for piece in self._exports.pieces(question, _FORMATS.get(request.format, "csv")):
            yield pb.ExportCostsResponse(data=piece.encode())

    async def _book(self) -> PriceBook:
        """A replica that does not lead keeps no book of its own."""
        return self._prices.book if self._leads() else await self._store.book()

    def _require_leader(self) -> None:
        if not self._leads():
            raise NotReadyError("only the replica that leads knows budgets")


def _place(token: str) -> tuple[int, str]:
    """From which row on, and of which answer."""
    if not token:
        return 0, ""
    place, _, mark = token.partition(".")
    if not (place.isascii() and place.isdecimal()) or len(place) > 9 or len(mark) > _MARK_LENGTH:
        raise InvalidRequestError("page_token is not one of ours")
    return int(place), mark


def _mark(lines: Sequence[model.CostLine]) -> str:
    """Tells answers apart: parts of two of them add up to nothing."""
    return hashlib.sha256(repr(lines).encode(errors="replace")).hexdigest()[:_MARK_LENGTH]
