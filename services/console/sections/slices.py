"""How GPUs are cut, and changes under way, from the MIG controller."""

from collections.abc import Mapping

from gpuloom.clients.mig import list_cards
from gpuloom.model.mig_cards import MigCard, WaitingPod
from gpuloom.rpc.channel import RpcChannel
from services.console.core.sight import of_a_namespace, without_foreign_pods
from services.console.core.state import Items, Json
from services.console.core.texts import owner_fields, pod_fields
from services.console.ports import Source

INTERVAL_S = 2.0
TIMEOUT_S = 5.0
MIG, MIG_WAITING = "mig", "mig_waiting"


def slices_source(channel: RpcChannel) -> Source:
    async def read() -> Mapping[str, Items]:
        found = await list_cards(channel, TIMEOUT_S)
        return {
            MIG: {card.gpu_uuid: card_item(card) for card in found.cards},
            MIG_WAITING: {f"{one.pod.uid} {one.profile}": _waiting(one) for one in found.waiting},
        }

    return Source(
        "mig_controller", {MIG: without_foreign_pods, MIG_WAITING: of_a_namespace}, INTERVAL_S, read
    )


def card_item(card: MigCard) -> Json:
    return {
        "node": card.node_name,
        "index": card.index,
        "model": card.model,
        "stage": card.stage.value,
        "memory_slices": card.memory_slices,
        "sharing": card.sharing.value,
        "note": card.note,
        "slices": [
            {
                "start": one.placement.start,
                "profile": one.placement.profile,
                "slices": one.slices,
                "stage": one.stage.value,
                "owner": owner_fields(one.owner),
            }
            for one in card.slices
        ],
    }


def _waiting(one: WaitingPod) -> Json:
    return {**pod_fields(one.pod), "profile": one.profile, "note": one.note}
