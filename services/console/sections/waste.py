"""Pods that hold more than they use, from the optimizer. The patch of one is fetched when somebody asks."""

from collections.abc import Mapping

from gpuloom.clients.optimizer import recommend, waste
from gpuloom.errors import UnavailableError
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import PodWaste
from gpuloom.rpc.channel import RpcChannel
from services.console.core.sight import of_a_namespace
from services.console.core.state import Items, Json
from services.console.core.texts import micro_usd, moment, pod_fields
from services.console.ports import Source

INTERVAL_S = 10.0
TIMEOUT_S = 5.0
MOST_PODS = 500
WASTE = "waste"


def waste_source(channel: RpcChannel) -> Source:
    async def read() -> Mapping[str, Items]:
        report = await waste(channel, timeout_s=TIMEOUT_S)
        if report.problem:
            raise UnavailableError(report.problem)
        return {WASTE: {one.pod.uid: waste_item(one) for one in report.pods[:MOST_PODS]}}

    return Source("optimizer", {WASTE: of_a_namespace}, INTERVAL_S, read)


async def recommendation(channel: RpcChannel, pod: PodRef) -> Json:
    """Raise NotFoundError if there is none."""
    found = await recommend(channel, pod, TIMEOUT_S)
    return {
        **waste_item(found.waste),
        "target": found.target,
        "is_patch": found.is_patch,
        "yaml": found.yaml,
        "applied": [
            {
                "time": moment(one.applied_at),
                "before": one.before,
                "after": one.after,
                "expected": _money(one.expected_nano_usd),
                "actual": _money(one.actual_nano_usd),
            }
            for one in found.applied
        ],
    }


def waste_item(one: PodWaste) -> Json:
    return {
        **pod_fields(one.pod),
        "owner": one.owner,
        "class": one.workload_class.value,
        "score": round(one.score, 1),
        "parts": {
            "idle": round(one.parts.idle, 1),
            "oversized": round(one.parts.oversized, 1),
            "wrong kind": round(one.parts.wrong_kind, 1),
            "sharable": round(one.parts.sharable, 1),
        },
        "now": one.now,
        "recommended": one.recommended,
        "saving": _money(one.saving_nano_usd),
        "confidence": round(one.confidence * 100),
        "utilization": None if one.utilization_ratio is None else round(one.utilization_ratio * 100),
        "reason": one.reason,
        "since": moment(one.since),
    }


def _money(nano_usd: int | None) -> int | None:
    return None if nano_usd is None else micro_usd(nano_usd)
