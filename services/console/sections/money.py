"""What GPUs cost, by namespace and team, over a day and a month, with budgets; from the cost engine.

What changes slowly is asked for rarely: a bill over a month is a walk over its store.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from gpuloom.clients.cost import cost_summary, list_budgets, query_costs, savings
from gpuloom.model.cost import CostQuestion
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock
from services.console.core.money import budget_items, savings_item, series_items, summary_item
from services.console.core.sight import Sight, of_a_namespace, of_the_cluster
from services.console.core.state import Items, Json
from services.console.ports import Source

SUMMARY_INTERVAL_S = 5.0
COSTS_INTERVAL_S = 20.0
TIMEOUT_S = 10.0
SPANS = {"hour": timedelta(hours=24), "day": timedelta(days=30)}
DIMENSIONS = ("namespace", "team")
MONEY, BUDGETS, COSTS = "money", "budgets", "costs"


def summary_source(channel: RpcChannel) -> Source:
    async def read() -> Mapping[str, Items]:
        summary = await cost_summary(channel, TIMEOUT_S)
        budgets = await list_budgets(channel, TIMEOUT_S)
        return {MONEY: {"summary": summary_item(summary)}, BUDGETS: budget_items(budgets)}

    return Source("cost_engine", {MONEY: of_the_cluster, BUDGETS: of_the_cluster}, SUMMARY_INTERVAL_S, read)


def costs_source(channel: RpcChannel, clock: Clock) -> Source:
    async def read() -> Mapping[str, Items]:
        now = clock.now()
        found: dict[str, Json] = {}
        for step, span in SPANS.items():
            for dimension in DIMENSIONS:
                question = CostQuestion(now - span, now, step, (dimension,))
                found |= series_items(await query_costs(channel, question, TIMEOUT_S), dimension, step)
        saved = await savings(channel, *_month(now), TIMEOUT_S)
        return {COSTS: found, "savings": {"month": savings_item(saved)}}

    rules = {COSTS: _of_its_namespace, "savings": of_the_cluster}
    return Source("costs", rules, COSTS_INTERVAL_S, read)


def _of_its_namespace(value: Json, sight: Sight) -> Json:
    """What is nobody's alone belongs to the cluster."""
    return of_a_namespace(value, sight) if value["namespace"] else of_the_cluster(value, sight)


def _month(now: datetime) -> tuple[datetime, datetime]:
    return now - SPANS["day"], now
