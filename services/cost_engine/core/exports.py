"""Costs as rows of a file: our own columns, and FOCUS 1.2.

In FOCUS each owner's part of a node in one stretch is a usage charge. Amounts are decimals with a point and
nine places, times are UTC, and the sum of BilledCost is the sum of the node bills.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from gpuloom.model.budget import BudgetPeriod
from gpuloom.model.money import usd
from services.cost_engine.core.attribution import HOST, IDLE
from services.cost_engine.core.budgets import period_at
from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.intervals import NANOSECONDS_PER_SECOND, UNITS_PER_GPU
from services.cost_engine.core.prices import ON_DEMAND, RESERVED, SPOT

COLUMNS = (
    "start",
    "end",
    "namespace",
    "pod",
    "pod_uid",
    "workload",
    "labels",
    "node",
    "pool",
    "instance_type",
    "capacity_type",
    "price_quality",
    "gpu_hours",
    "cost_usd",
    "used_usd",
    "idle_usd",
    "unknown_usd",
    "unallocated_usd",
    "unpriced_seconds",
)
FOCUS_COLUMNS = (
    "AvailabilityZone",
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
)
PRICING_CATEGORIES = {ON_DEMAND: "Standard", SPOT: "Dynamic", RESERVED: "Committed"}
_PRICE_PLACES = Decimal(1).scaleb(-15)
_UNIT_MS_PER_HOUR = UNITS_PER_GPU * 3_600_000


@dataclass(frozen=True, slots=True)
class ExportContext:
    """`step_ns`: how long a stretch is. The account is whoever runs the cluster."""

    step_ns: int
    end_ns: int
    account_id: str = "cluster"
    account_name: str = "cluster"
    provider: str = "GPULoom"


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def plain_row(fact: CostFact, context: ExportContext) -> tuple[str, ...]:
    pod, amounts = fact.pod, fact.amounts
    return (
        time_text(fact.bucket_ns),
        time_text(min(fact.bucket_ns + context.step_ns, context.end_ns)),
        pod.namespace if pod else fact.owner,
        pod.name if pod else "",
        pod.uid if pod else "",
        pod.workload if pod else "",
        json.dumps(dict(pod.labels), ensure_ascii=False, sort_keys=True) if pod else "{}",
        fact.node,
        fact.pool,
        fact.instance_type,
        fact.capacity_type,
        fact.quality,
        gpu_hours(amounts.unit_ms),
        *(decimal(value) for value in (amounts.cost, amounts.used, amounts.idle, amounts.unknown)),
        decimal(amounts.unallocated),
        str(amounts.unpriced_ns // NANOSECONDS_PER_SECOND),
    )


def json_line(fact: CostFact, context: ExportContext) -> str:
    return json.dumps(dict(zip(COLUMNS, plain_row(fact, context), strict=True)), ensure_ascii=False) + "\n"


def focus_row(fact: CostFact, context: ExportContext) -> tuple[str, ...]:
    pod, amounts = fact.pod, fact.amounts
    month = period_at(BudgetPeriod.MONTH, fact.bucket_ns)
    # What is not for GPUs has no hours of them: it is one charge.
    quantity, unit = (gpu_hours(amounts.unit_ms), "GPU Hours") if amounts.unit_ms else ("1", "Count")
    values = {
        **_commitment(fact, quantity, unit),
        "BilledCost": decimal(amounts.cost),
        "BillingAccountId": context.account_id,
        "BillingAccountName": context.account_name,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": time_text(month.end_ns),
        "BillingPeriodStart": time_text(month.start_ns),
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": _description(fact),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": time_text(min(fact.bucket_ns + context.step_ns, context.end_ns)),
        "ChargePeriodStart": time_text(fact.bucket_ns),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "ContractedCost": decimal(amounts.cost),
        "ContractedUnitPrice": unit_price(amounts.cost, quantity),
        "EffectiveCost": decimal(amounts.cost),
        "InvoiceIssuerName": context.provider,
        "ListCost": decimal(amounts.on_demand),
        "ListUnitPrice": unit_price(amounts.on_demand, quantity),
        "PricingCategory": PRICING_CATEGORIES.get(fact.capacity_type, "Other"),
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "ProviderName": context.provider,
        "PublisherName": context.provider,
        "ResourceId": pod.uid if pod else f"{fact.node}/{fact.owner}",
        "ResourceName": f"{pod.namespace}/{pod.name}" if pod else fact.node,
        "ResourceType": "Pod" if pod else "Node",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "ServiceSubcategory": "Virtual Machines",
        "SkuId": fact.instance_type,
        "SkuPriceId": f"{fact.instance_type}/{fact.capacity_type}" if fact.instance_type else "",
        "SubAccountId": pod.namespace if pod else fact.owner,
        "SubAccountName": pod.namespace if pod else fact.owner,
        "Tags": _tags(fact),
    }
    return tuple(values.get(name, "") for name in FOCUS_COLUMNS)


def time_text(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns // NANOSECONDS_PER_SECOND, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def decimal(nano: int) -> str:
    return f"{usd(nano):f}"


def gpu_hours(unit_ms: int) -> str:
    return decimal(unit_ms * 10**9 // _UNIT_MS_PER_HOUR)


def unit_price(cost: int, quantity: str) -> str:
    """With so many places that the quantity as it is written times it is the cost."""
    amount = Decimal(quantity)
    return f"{(usd(cost) / amount).quantize(_PRICE_PLACES):f}" if amount else decimal(cost)


def _commitment(fact: CostFact, quantity: str, unit: str) -> dict[str, str]:
    """A node that is paid for in advance is the use of a commitment, which is named by what it is for."""
    if fact.capacity_type != RESERVED:
        return {}
    name = f"{fact.instance_type or fact.node}/{RESERVED}"
    return {
        "CommitmentDiscountCategory": "Usage",
        "CommitmentDiscountId": name,
        "CommitmentDiscountName": name,
        "CommitmentDiscountQuantity": quantity,
        "CommitmentDiscountStatus": "Used",
        "CommitmentDiscountType": "Reserved",
        "CommitmentDiscountUnit": unit,
    }


def _description(fact: CostFact) -> str:
    if fact.owner == IDLE:
        return f"GPUs of {fact.node} that nobody held"
    if fact.owner == HOST:
        return f"Host of {fact.node}, without its GPUs"
    return f"GPUs of {fact.node} held by a pod"


def _tags(fact: CostFact) -> str:
    labels = dict(fact.pod.labels) if fact.pod else {}
    quality = fact.quality or "missing"
    own = {"gpuloom/node": fact.node, "gpuloom/pool": fact.pool, "gpuloom/priceQuality": quality}
    return json.dumps({**labels, **own}, ensure_ascii=False, sort_keys=True)
