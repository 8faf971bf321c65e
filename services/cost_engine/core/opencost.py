"""The shape in which OpenCost answers /allocation, and what its clients may ask for."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuloom.model.cost import CostLine, CostQuestion
from gpuloom.model.money import usd

_SPAN = re.compile(r"([0-9]{1,5})([mhdw])")
_UNIX = re.compile(r"[0-9]{1,10}")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NAMES = {
    "cluster": "cluster",
    "node": "node",
    "namespace": "namespace",
    "pod": "pod",
    "controller": "workload",
    "deployment": "workload",
    "department": "team",
    "team": "team",
    "instance": "instance_type",
}


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    question: CostQuestion
    accumulate: bool


def allocation_request(query: Mapping[str, str], now: datetime) -> AllocationRequest:
    """Raise ValueError, with what would be right, for what can't be asked."""
    # An answer without a filter that was asked for would be taken for the filtered one.
    other = sorted(
        key for key in query if key.startswith("filter") and key != "filterNamespaces" and query[key]
    )
    if other:
        raise ValueError(f"{other[0][:40]} is not understood; there is filterNamespaces")
    start, end = parse_window(query.get("window", "1d"), now)
    accumulate = query.get("accumulate", "false").lower() in ("true", "1", "all")
    names = [name for name in query.get("aggregate", "namespace").split(",") if name]
    wanted = [name.strip() for name in query.get("filterNamespaces", "").split(",") if name.strip()]
    question = CostQuestion(
        start=start,
        end=end,
        step="all" if accumulate else _step(query.get("step", ""), end - start),
        group_by=tuple(_dimension(name.strip()) for name in names),
        filters={"namespace": tuple(wanted)} if wanted else {},
    )
    return AllocationRequest(question, accumulate)


def _step(text: str, window: timedelta) -> str:
    """Without one the whole window is one set."""
    match = _SPAN.fullmatch(text)
    span = timedelta(seconds=int(match[1]) * _SECONDS[match[2]]) if match else None
    if text == "" or span == window:
        return "all"
    if text in ("hour", "day"):
        return text
    steps = {timedelta(hours=1): "hour", timedelta(days=1): "day"}
    if span not in steps:
        raise ValueError("step must be 1h, 1d or the whole window")
    return steps[span]


def parse_window(text: str, now: datetime) -> tuple[datetime, datetime]:
    """`today`, `yesterday`, `week`, `month`, `24h`, `7d`, or two times with a comma between."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first_day = midnight.replace(day=1)
    named = {
        "today": (midnight, now),
        "yesterday": (midnight - timedelta(days=1), midnight),
        "week": (midnight - timedelta(days=midnight.weekday()), now),
        "month": (first_day, now),
        "lastmonth": ((first_day - timedelta(days=1)).replace(day=1), first_day),
        "lastweek": (
            midnight - timedelta(days=midnight.weekday() + 7),
            midnight - timedelta(days=midnight.weekday()),
        ),
    }
    if text in named:
        return named[text]
    match = _SPAN.fullmatch(text)
    if match is not None:
        return now - timedelta(seconds=int(match[1]) * _SECONDS[match[2]]), now
    first, comma, last = text.partition(",")
    if comma:
        return _moment(first), _moment(last)
    raise ValueError("window must be like 7d, 24h, today, month or two times with a comma between")


def allocation_sets(lines: Iterable[CostLine], question: CostQuestion, end: datetime) -> list[dict[str, Any]]:
    """One object of allocations by name for each step."""
    sets: dict[datetime, dict[str, Any]] = {}
    span = {"hour": timedelta(hours=1), "day": timedelta(days=1)}.get(question.step)
    for line in lines:
        last = end if span is None else min(end, line.start + span)
        name = "/".join(line.group) or "cluster"
        sets.setdefault(line.start, {})[name] = _allocation(name, line, question, last)
    return [sets[start] for start in sorted(sets)]


def _allocation(name: str, line: CostLine, question: CostQuestion, end: datetime) -> dict[str, Any]:
    amounts = line.amounts
    minutes = max(0.0, (end - line.start).total_seconds() / 60)
    allocated = amounts.allocated
    return {
        "name": name,
        "properties": dict(zip(question.group_by, line.group, strict=True)),
        "window": {"start": _text(line.start), "end": _text(end)},
        "start": _text(line.start),
        "end": _text(end),
        "minutes": minutes,
        "cpuCost": 0,
        "ramCost": 0,
        "pvCost": 0,
        "networkCost": 0,
        "loadBalancerCost": 0,
        "sharedCost": 0,
        "externalCost": 0,
        "gpuCount": amounts.gpu_seconds / (minutes * 60) if minutes else 0,
        "gpuHours": amounts.gpu_seconds / 3600,
        "gpuCost": float(usd(amounts.cost)),
        "gpuCostIdle": float(usd(amounts.idle)),
        "gpuEfficiency": amounts.used / allocated if allocated else 0,
        "totalCost": float(usd(amounts.cost)),
        "totalEfficiency": amounts.used / allocated if allocated else 0,
    }


def _dimension(name: str) -> str:
    if name.startswith("label:"):
        return name
    if name not in _NAMES:
        raise ValueError(f"aggregate must be one of {', '.join(sorted(_NAMES))} or label:<name>")
    return _NAMES[name]


def _moment(text: str) -> datetime:
    """RFC 3339, or seconds since 1970."""
    try:
        if _UNIX.fullmatch(text.strip()):
            return datetime.fromtimestamp(int(text), UTC)
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no time; write 2026-01-31T00:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
