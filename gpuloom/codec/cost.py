"""What the cost engine answers: proto <-> model. Times that are absent are None."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.errors import InvalidRequestError
from gpuloom.model.cost import (
    BudgetReport,
    BudgetVerdict,
    CostAmounts,
    CostAnswer,
    CostGap,
    CostLine,
    CostQuestion,
    CostSummary,
    MechanismSaving,
    NodePrice,
    PodMatcher,
    PriceEntry,
    PriceList,
    SavingsReport,
)
from gpuloom.v1 import cost_engine_pb2 as pb

MAX_GROUP_BY = 4
MAX_FILTERS = 16
MAX_FILTER_VALUES = 256
MAX_TEXT = 512
MAX_VERDICTS = 1000

STEPS = {"all": pb.COST_STEP_ALL, "hour": pb.COST_STEP_HOUR, "day": pb.COST_STEP_DAY}
_STEP_NAMES = {number: name for name, number in STEPS.items()}
FORMATS = {
    "csv": pb.EXPORT_FORMAT_CSV,
    "json": pb.EXPORT_FORMAT_JSON,
    "focus": pb.EXPORT_FORMAT_FOCUS,
}


def time_to_proto(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    found = Timestamp()
    found.FromDatetime(moment)
    return found


def time_from_proto(message: Timestamp) -> datetime:
    """Raise InvalidRequestError for what is no time."""
    try:
        return message.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequestError("a time is out of range") from None


def question_to_proto(question: CostQuestion, page_token: str = "") -> pb.QueryCostsRequest:
    return pb.QueryCostsRequest(
        start=time_to_proto(question.start),
        end=time_to_proto(question.end),
        step=STEPS[question.step],
        group_by=question.group_by,
        filters=[pb.CostFilter(dimension=key, values=values) for key, values in question.filters.items()],
        page_token=page_token,
    )


def question_from_proto(request: pb.QueryCostsRequest) -> CostQuestion:
    if len(request.group_by) > MAX_GROUP_BY or len(request.filters) > MAX_FILTERS:
        raise InvalidRequestError(f"group by at most {MAX_GROUP_BY}, filter by at most {MAX_FILTERS}")
    texts = [*request.group_by]
    for each in request.filters:
        if len(each.values) > MAX_FILTER_VALUES:
            raise InvalidRequestError(f"a filter has at most {MAX_FILTER_VALUES} values")
        texts += [each.dimension, *each.values]
    if any(len(text) > MAX_TEXT for text in texts):
        raise InvalidRequestError(f"a dimension or value has at most {MAX_TEXT} characters")
    return CostQuestion(
        start=time_from_proto(request.start) if request.HasField("start") else None,
        end=time_from_proto(request.end) if request.HasField("end") else None,
        step=_STEP_NAMES.get(request.step, "all"),
        group_by=tuple(request.group_by),
        filters={each.dimension: tuple(each.values) for each in request.filters},
    )


def amounts_to_proto(amounts: CostAmounts) -> pb.CostAmounts:
    return pb.CostAmounts(
        cost=amounts.cost,
        used=amounts.used,
        idle=amounts.idle,
        unknown=amounts.unknown,
        unallocated=amounts.unallocated,
        baseline=amounts.baseline,
        on_demand=amounts.on_demand,
        gpu_seconds=amounts.gpu_seconds,
        unpriced_seconds=amounts.unpriced_seconds,
        energy_mj=amounts.energy_mj,
    )


def amounts_from_proto(message: pb.CostAmounts) -> CostAmounts:
    return CostAmounts(
        cost=message.cost,
        used=message.used,
        idle=message.idle,
        unknown=message.unknown,
        unallocated=message.unallocated,
        baseline=message.baseline,
        on_demand=message.on_demand,
        gpu_seconds=message.gpu_seconds,
        unpriced_seconds=message.unpriced_seconds,
        energy_mj=message.energy_mj,
    )


def line_to_proto(line: CostLine) -> pb.CostRow:
    return pb.CostRow(
        start=time_to_proto(line.start), group=line.group, amounts=amounts_to_proto(line.amounts)
    )


def line_from_proto(message: pb.CostRow) -> CostLine:
    return CostLine(time_from_proto(message.start), tuple(message.group), amounts_from_proto(message.amounts))


def answer_from_proto(message: pb.QueryCostsResponse, lines: tuple[CostLine, ...]) -> CostAnswer:
    """`lines` are those of all parts."""
    return CostAnswer(
        lines=lines,
        total=amounts_from_proto(message.total),
        start=time_from_proto(message.start),
        end=time_from_proto(message.end),
        reconciled=message.reconciled,
        gaps=tuple(
            CostGap(
                gap.node_uid, gap.pod_uid, time_from_proto(gap.start), time_from_proto(gap.end), gap.reason
            )
            for gap in message.gaps
        ),
    )


def gap_to_proto(gap: CostGap) -> pb.CostGap:
    return pb.CostGap(
        node_uid=gap.node_uid,
        pod_uid=gap.pod_uid,
        start=time_to_proto(gap.start),
        end=time_to_proto(gap.end),
        reason=gap.reason,
    )


def summary_to_proto(summary: CostSummary) -> pb.GetCostSummaryResponse:
    return pb.GetCostSummaryResponse(
        nano_usd_per_hour=summary.nano_usd_per_hour,
        nano_usd_per_month=summary.nano_usd_per_month,
        hours_per_month=summary.hours_per_month,
        priced_nodes=summary.priced_nodes,
        unpriced_nodes=summary.unpriced_nodes,
        today=amounts_to_proto(summary.today),
        total=amounts_to_proto(summary.total),
        since=time_to_proto(summary.since),
    )


def summary_from_proto(message: pb.GetCostSummaryResponse) -> CostSummary:
    return CostSummary(
        nano_usd_per_hour=message.nano_usd_per_hour,
        nano_usd_per_month=message.nano_usd_per_month,
        hours_per_month=message.hours_per_month,
        priced_nodes=message.priced_nodes,
        unpriced_nodes=message.unpriced_nodes,
        today=amounts_from_proto(message.today),
        total=amounts_from_proto(message.total),
        since=time_from_proto(message.since),
    )


def savings_to_proto(report: SavingsReport) -> pb.GetSavingsResponse:
    return pb.GetSavingsResponse(
        baseline=report.baseline,
        actual=report.actual,
        mechanisms=[
            pb.MechanismSaving(mechanism=one.mechanism, nano_usd=one.nano_usd, estimated=one.estimated)
            for one in report.mechanisms
        ],
        start=time_to_proto(report.start),
        end=time_to_proto(report.end),
    )


def savings_from_proto(message: pb.GetSavingsResponse) -> SavingsReport:
    return SavingsReport(
        message.baseline,
        message.actual,
        tuple(MechanismSaving(one.mechanism, one.nano_usd, one.estimated) for one in message.mechanisms),
        time_from_proto(message.start),
        time_from_proto(message.end),
    )


def price_to_proto(price: PriceEntry) -> pb.PriceEntry:
    return pb.PriceEntry(
        provider=price.provider,
        region=price.region,
        zone=price.zone,
        instance_type=price.instance_type,
        capacity_type=price.capacity_type,
        nano_usd_per_hour=price.nano_usd_per_hour,
        source=price.source,
        fetched_at=time_to_proto(price.fetched_at),
    )


def prices_from_proto(message: pb.ListPricesResponse) -> PriceList:
    """A price of 0 or below is refused: nothing is free."""
    entries = []
    for price in message.prices:
        if price.nano_usd_per_hour <= 0:
            raise InvalidRequestError(f"{price.instance_type[:MAX_TEXT]}: a price must be above 0")
        fetched = time_from_proto(price.fetched_at) if price.HasField("fetched_at") else None
        entries.append(
            PriceEntry(
                price.provider,
                price.region,
                price.zone,
                price.instance_type,
                price.capacity_type,
                price.nano_usd_per_hour,
                price.source,
                fetched,
            )
        )
    if any(node.nano_usd_per_hour <= 0 for node in message.nodes):
        raise InvalidRequestError("the price of a node must be above 0")
    nodes = (NodePrice(node.node_uid, node.nano_usd_per_hour, node.quality) for node in message.nodes)
    return PriceList(tuple(entries), tuple(message.missing), tuple(nodes))


def node_price_to_proto(price: NodePrice) -> pb.NodePrice:
    return pb.NodePrice(
        node_uid=price.node_uid, nano_usd_per_hour=price.nano_usd_per_hour, quality=price.quality
    )


def budget_to_proto(report: BudgetReport) -> pb.BudgetReport:
    return pb.BudgetReport(
        name=report.name,
        period=report.period,
        period_start=time_to_proto(report.period_start),
        period_end=time_to_proto(report.period_end),
        limit=report.limit,
        spend=report.spend,
        forecast=report.forecast,
        forecast_low=report.forecast_low,
        forecast_high=report.forecast_high,
        state=report.state,
        action=report.action,
        crossed=report.crossed,
    )


def budget_from_proto(message: pb.BudgetReport) -> BudgetReport:
    return BudgetReport(
        name=message.name,
        period=message.period,
        period_start=time_from_proto(message.period_start),
        period_end=time_from_proto(message.period_end),
        limit=message.limit,
        spend=message.spend,
        forecast=message.forecast,
        forecast_low=message.forecast_low,
        forecast_high=message.forecast_high,
        state=message.state,
        action=message.action,
        crossed=tuple(message.crossed),
    )


def verdict_to_proto(verdict: BudgetVerdict) -> pb.BudgetVerdict:
    return pb.BudgetVerdict(
        budget=verdict.budget,
        action=verdict.action,
        reason=verdict.reason,
        matchers=map(_matcher_to_proto, verdict.matchers),
    )


def verdicts_from_proto(message: pb.ListBudgetVerdictsResponse) -> tuple[BudgetVerdict, ...]:
    if len(message.verdicts) > MAX_VERDICTS:
        raise InvalidRequestError(f"more than {MAX_VERDICTS} budget verdicts")
    return tuple(
        BudgetVerdict(
            each.budget[:MAX_TEXT],
            each.action,
            each.reason[:MAX_TEXT],
            tuple(
                PodMatcher(*_patterns(matcher), tuple(PodMatcher(*_patterns(one)) for one in matcher.unless))
                for matcher in each.matchers
            ),
        )
        for each in message.verdicts
    )


def _matcher_to_proto(matcher: PodMatcher) -> pb.PodMatcher:
    return pb.PodMatcher(
        namespaces=matcher.namespaces,
        labels=dict(matcher.labels),
        unless=map(_matcher_to_proto, matcher.unless),
    )


def _patterns(message: pb.PodMatcher) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    return tuple(message.namespaces), tuple(sorted(message.labels.items()))
