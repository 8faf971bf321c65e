"""What the cost engine knows: costs, prices, savings, budgets."""

from collections.abc import AsyncIterator
from datetime import datetime

from gpuloom.codec.cost import (
    FORMATS,
    STEPS,
    answer_from_proto,
    budget_from_proto,
    line_from_proto,
    prices_from_proto,
    question_to_proto,
    savings_from_proto,
    summary_from_proto,
    time_to_proto,
    verdicts_from_proto,
)
from gpuloom.errors import ConflictError
from gpuloom.model.cost import (
    BudgetReport,
    BudgetVerdict,
    CostAnswer,
    CostQuestion,
    CostSummary,
    PriceList,
    SavingsReport,
)
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.v1 import cost_engine_pb2 as pb
from gpuloom.v1.cost_engine_pb2_grpc import CostEngineServiceStub

TIMEOUT_S = 20.0
_QUICK_S = 5.0
_TRIES = 4


async def query_costs(
    channel: RpcChannel, question: CostQuestion, timeout_s: float = TIMEOUT_S
) -> CostAnswer:
    """All parts of one answer. Raise ConflictError if costs change faster than they can be read."""
    for _ in range(_TRIES - 1):
        try:
            return await _all_parts(channel, question, timeout_s)
        except ConflictError:
            continue
    return await _all_parts(channel, question, timeout_s)


async def _all_parts(channel: RpcChannel, question: CostQuestion, timeout_s: float) -> CostAnswer:
    stub = channel.stub(CostEngineServiceStub)
    first = answer = await stub.QueryCosts(question_to_proto(question), timeout=timeout_s)
    lines = list(map(line_from_proto, first.rows))
    while answer.next_page_token:
        request = question_to_proto(question, answer.next_page_token)
        answer = await stub.QueryCosts(request, timeout=timeout_s)
        lines += map(line_from_proto, answer.rows)
    # What is not known is told once, with the first part.
    return answer_from_proto(first, tuple(lines))


async def cost_summary(channel: RpcChannel, timeout_s: float = _QUICK_S) -> CostSummary:
    stub = channel.stub(CostEngineServiceStub)
    return summary_from_proto(await stub.GetCostSummary(pb.GetCostSummaryRequest(), timeout=timeout_s))


async def savings(
    channel: RpcChannel, start: datetime | None, end: datetime | None, timeout_s: float = TIMEOUT_S
) -> SavingsReport:
    request = pb.GetSavingsRequest(start=time_to_proto(start), end=time_to_proto(end))
    stub = channel.stub(CostEngineServiceStub)
    return savings_from_proto(await stub.GetSavings(request, timeout=timeout_s))


async def list_prices(
    channel: RpcChannel,
    *,
    provider: str = "",
    region: str = "",
    instance_types: tuple[str, ...] = (),
    timeout_s: float = TIMEOUT_S,
) -> PriceList:
    request = pb.ListPricesRequest(provider=provider, region=region, instance_types=instance_types)
    stub = channel.stub(CostEngineServiceStub)
    return prices_from_proto(await stub.ListPrices(request, timeout=timeout_s))


async def list_budgets(channel: RpcChannel, timeout_s: float = TIMEOUT_S) -> tuple[BudgetReport, ...]:
    stub = channel.stub(CostEngineServiceStub)
    answer = await stub.ListBudgets(pb.ListBudgetsRequest(), timeout=timeout_s)
    return tuple(map(budget_from_proto, answer.budgets))


async def list_verdicts(channel: RpcChannel, timeout_s: float = _QUICK_S) -> tuple[BudgetVerdict, ...]:
    stub = channel.stub(CostEngineServiceStub)
    return verdicts_from_proto(
        await stub.ListBudgetVerdicts(pb.ListBudgetVerdictsRequest(), timeout=timeout_s)
    )


async def export_costs(channel: RpcChannel, question: CostQuestion, form: str) -> AsyncIterator[bytes]:
    """`form`: csv, json or focus. Only the times and the step of the question count."""
    request = pb.ExportCostsRequest(
        start=time_to_proto(question.start),
        end=time_to_proto(question.end),
        format=FORMATS[form],
        step=STEPS[question.step],
    )
    async with open_stream(channel.stub(CostEngineServiceStub).ExportCosts(request)) as pieces:
        async for piece in pieces:
            yield piece.data
