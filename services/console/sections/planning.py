"""Gangs and reservations, as the extender's leader plans them.

What is held for them, and for pods that others leave for, is in the section of the ledger.
"""

from collections.abc import Mapping

from gpuloom.clients.planning import PlanClient
from gpuloom.model.planning import GangReport, ReservationReport
from services.console.core.sight import of_a_namespace
from services.console.core.state import Items, Json
from services.console.core.texts import moment
from services.console.ports import Source

INTERVAL_S = 2.0
MOST_ITEMS = 500
GANGS, RESERVATIONS = "gangs", "reservations"


def planning_source(client: PlanClient) -> Source:
    async def read() -> Mapping[str, Items]:
        gangs, reservations = await client.gangs(), await client.reservations()
        return {
            GANGS: {one.name: gang_item(one) for one in gangs[:MOST_ITEMS]},
            RESERVATIONS: {
                f"{one.namespace}/{one.name}": reservation_item(one) for one in reservations[:MOST_ITEMS]
            },
        }

    return Source("planning", {GANGS: of_a_namespace, RESERVATIONS: of_a_namespace}, INTERVAL_S, read)


def gang_item(gang: GangReport) -> Json:
    namespace, _, name = gang.name.partition("/")
    return {
        "namespace": namespace,
        "gang": name,
        "phase": gang.phase,
        "size": gang.size,
        "waiting": gang.waiting,
        "bound": gang.bound,
        "reserved": gang.reserved,
        "priority": gang.priority,
        "reason": gang.reason,
        "nodes": list(gang.nodes),
        "deadline": moment(gang.deadline),
    }


def reservation_item(one: ReservationReport) -> Json:
    return {
        "namespace": one.namespace,
        "reservation": one.name,
        "state": one.state,
        "each": f"{one.gpu_count} {one.mig_profile or one.gpu_model or one.architecture or 'GPU'}",
        "count": one.count,
        "reserved": one.reserved,
        "start": moment(one.start),
        "end": moment(one.end),
        "labels": [f"{key}={value}" for key, value in sorted(one.match_labels.items())],
        "nodes": list(one.nodes),
    }
