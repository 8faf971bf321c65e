"""Decisions and explanations as JSON values, and which pods wait. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuloom.model.explanation import Explanation, Judgement, Offer, PodStanding
from gpuloom.model.ledger import Decision, NodeScore, Verdict
from gpuloom.model.node import PodRef
from services.console.core.texts import devices_json, moment, pod_fields

Json = Any

MOST_WAITING = 2000
WAITING = frozenset({PodStanding.FITS, PodStanding.REFUSED, PodStanding.OTHER_SCHEDULER})


@dataclass(slots=True)
class WaitingPods:
    """Pods of which the last decision was no node, by UID, the oldest first; bounded."""

    most: int = MOST_WAITING
    since: dict[str, tuple[PodRef, datetime, str]] = field(default_factory=dict)

    def note(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            uid = decision.pod.uid
            if decision.verdict is Verdict.BOUND:
                self.since.pop(uid, None)
                continue
            first = self.since[uid][1] if uid in self.since else decision.time
            self.since[uid] = decision.pod, first, decision.reason
            while len(self.since) > self.most:
                del self.since[next(iter(self.since))]

    def end(self, uid: str) -> None:
        """It is gone, or has a node."""
        self.since.pop(uid, None)


def decision_item(decision: Decision) -> Json:
    return {
        **pod_fields(decision.pod),
        "time": moment(decision.time),
        "verdict": decision.verdict.value,
        "node": decision.node_name,
        "devices": devices_json(decision.devices),
        "reason": decision.reason,
        "scores": [_score(score) for score in decision.scores],
    }


def pending_item(pod: PodRef, since: datetime, last_reason: str, explained: Explanation | None) -> Json:
    item = {
        **pod_fields(pod),
        "since": moment(since),
        "last_reason": last_reason,
        "request": "",
        "explained": explained is not None,
    }
    return item if explained is None else {**item, **_standing(explained)}


def explanation_json(explained: Explanation) -> Json:
    return {
        **pod_fields(explained.pod),
        "node": explained.node_name,
        "devices": devices_json(explained.devices),
        "decisions": [decision_item(decision) for decision in explained.decisions],
        **_standing(explained),
    }


def _standing(explained: Explanation) -> Mapping[str, Json]:
    quarantine = explained.quarantine
    return {
        "standing": explained.standing.value,
        "request": explained.request,
        "problem": explained.problem,
        "note": explained.note,
        "warnings": list(explained.warnings),
        "judgement": None if explained.judgement is None else _judgement(explained.judgement),
        "quarantine": None
        if quarantine is None
        else {
            "until": moment(quarantine.until),
            "failures": quarantine.failures,
            "whole_controller": quarantine.whole_controller,
        },
    }


def _judgement(judgement: Judgement) -> Json:
    return {
        "nodes": judgement.node_count,
        "fitting": judgement.fitting_count,
        "offers": [_offer(offer) for offer in judgement.offers[:10]],
        "reasons": [
            {"text": one.reason, "nodes": one.node_count, "resolvable": one.resolvable}
            for one in judgement.reasons
        ],
        "near": [{"node": one.node_name, "has": one.has} for one in judgement.near_misses],
        "changes": [
            {"change": one.change, "nodes": one.node_count, "node": one.node_name}
            for one in judgement.changes
        ],
    }


def _offer(offer: Offer) -> Json:
    return {
        "node": offer.node_name,
        "devices": devices_json(offer.devices),
        "total": round(offer.total, 2),
        "topology": round(offer.topology, 2),
        "resource": round(offer.resource, 2),
        "balance": round(offer.balance, 2),
    }


def _score(score: NodeScore) -> Json:
    return {
        "node": score.node_name,
        "total": round(score.total, 2),
        "topology": round(score.topology, 2),
        "resource": round(score.resource, 2),
        "balance": round(score.balance, 2),
        "hint": round(score.hint, 2),
    }
