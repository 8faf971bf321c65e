"""What the ledger says beyond what nodes show: closed nodes, holds, and what is on its way."""

from collections.abc import Mapping

from gpuloom.clients.ledger import LedgerMirror
from gpuloom.errors import NotReadyError, UnavailableError
from gpuloom.model.ledger import Claim, EntryState, Hold, NodeLedger
from services.console.core.sight import without_foreign_pods
from services.console.core.state import Items, Json
from services.console.core.texts import devices_json, moment, pod_fields
from services.console.ports import Source

INTERVAL_S = 1.0
STALE_S = 20.0
LEDGER = "ledger"


def ledger_source(mirror: LedgerMirror) -> Source:
    async def read() -> Mapping[str, Items]:
        if not mirror.synced:
            raise NotReadyError("the extender's leader was not heard yet")
        if mirror.age_s() > STALE_S:
            raise UnavailableError(f"the extender's leader has said nothing for {mirror.age_s():.0f} s")
        items = {name: ledger_item(node) for name, node in mirror.nodes.items()}
        return {LEDGER: {name: item for name, item in items.items() if item is not None}}

    return Source("ledger", {LEDGER: without_foreign_pods}, INTERVAL_S, read, mirror.run)


def ledger_item(node: NodeLedger) -> Json:
    """None for a node of which there is nothing beside what it shows itself."""
    moving = [claim for claim in node.claims if claim.state is not EntryState.OBSERVED or claim.problem]
    if not (node.closed_reason or node.holds or moving or node.vanished):
        return None
    return {
        "node": node.node_name,
        "closed": node.closed_reason,
        "holds": [_hold(hold) for hold in node.holds],
        "claims": [_claim(claim) for claim in moving],
        "vanished": [pod_fields(pod) for pod in node.vanished],
    }


def _hold(hold: Hold) -> Json:
    owner = hold.owner
    return {
        "hold": hold.name,
        "owner": {"kind": owner.kind, "namespace": owner.namespace or "", "name": owner.name},
        "text": hold.problem or hold.reason,
        "taken_by": hold.taken_by,
        "expires": moment(hold.expires),
        "device": None if hold.device is None else devices_json([hold.device])[0],
    }


def _claim(claim: Claim) -> Json:
    return {
        **pod_fields(claim.pod),
        "state": claim.state.value,
        "problem": claim.problem,
        "devices": None if claim.devices is None else devices_json(claim.devices),
    }
