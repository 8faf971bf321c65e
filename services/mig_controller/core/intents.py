"""Changes that the controller has decided on: what is remembered of each until it has ended. Pure.

An intent is written down after its holds are taken and before its agent is asked, and is struck out after its
holds are released. Whoever leads next goes on with every intent from where the agent says it is, and releases
holds that belong to none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gpuloom.errors import InvalidRequestError
from gpuloom.model.claims import HoldTarget
from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import ChangeState, LayoutChange, LayoutRequest, Sharing
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from services.mig_controller.core.cards import Card
from services.mig_controller.core.defragmentation import FitStep
from services.mig_controller.core.plan import Cut
from services.mig_controller.core.shares import Reshare
from services.mig_controller.core.steering import NODE_HOLD

VERSION = 1


@dataclass(frozen=True, slots=True)
class Leaver:
    """A pod that has to leave its slice before the agent is asked."""

    pod: PodRef
    placement: MigPlacement


@dataclass(frozen=True, slots=True)
class Intent:
    """`pods` are the UIDs of those for whom it is made, `began` when it was decided, for people."""

    request: LayoutRequest
    node_name: str
    node_uid: str
    pods: tuple[str, ...] = ()
    began: str = ""
    leavers: tuple[Leaver, ...] = ()

    @property
    def id(self) -> str:
        return self.request.id


def intent_of(cut: Cut, change_id: str, began: str) -> Intent:
    card = cut.card
    request = LayoutRequest(change_id, card.uuid, True if cut.enable else None, cut.destroy, cut.create)
    return Intent(request, card.node_name, card.node_uid, tuple(wish.pod.uid for wish in cut.pods), began)


def intent_of_step(step: FitStep, change_id: str, began: str, pods: tuple[str, ...] = ()) -> Intent:
    card = step.card
    request = LayoutRequest(change_id, card.uuid, None if card.cut else True, step.destroy, step.create)
    leavers = tuple(Leaver(move.pod, move.placement) for move in step.moves)
    return Intent(request, card.node_name, card.node_uid, pods, began, leavers)


def intent_of_sharing(change: Reshare, change_id: str, began: str) -> Intent:
    card = change.card
    request = LayoutRequest(change_id, card.uuid, sharing=change.sharing)
    return Intent(request, card.node_name, card.node_uid, tuple(wish.pod.uid for wish in change.pods), began)


def still_there(intent: Intent, card: Card | None) -> tuple[Leaver, ...]:
    """Those of its leavers that have their slice yet."""
    if card is None:
        return ()
    owned = {(one.placement, one.pod.uid) for one in card.slices if one.pod is not None}
    return tuple(one for one in intent.leavers if (one.placement, one.pod.uid) in owned)


def targets_of(intent: Intent) -> tuple[HoldTarget, ...]:
    """What nobody else may be given meanwhile: the whole GPU, or the slices that go.

    A slice that is made is on room that nobody can have, because nothing is there to be given.
    """
    request = intent.request
    if request.of_whole_gpu:
        return (HoldTarget(intent.node_name, intent.node_uid, request.gpu_uuid),)
    return tuple(
        HoldTarget(intent.node_name, intent.node_uid, request.gpu_uuid, place)
        for place in sorted(request.destroy)
    )


def hold_names(intent: Intent) -> tuple[str, ...]:
    """One for each target; the same after a restart."""
    return tuple(f"mig-{intent.id}-{number}" for number in range(len(targets_of(intent))))


def is_published(intent: Intent, card: Card | None) -> bool:
    """Whether discovery shows the outcome; a card that is gone has none."""
    if card is None:
        return True
    request = intent.request
    if request.mig_enabled not in (None, card.cut):
        return False
    if request.sharing is not None and not card.is_shared_as(request.sharing):
        return False
    places = {one.placement for one in card.slices}
    return set(request.create) <= places and not (set(request.destroy) - set(request.create)) & places


def stray_holds(names: Iterable[str], intents: Iterable[Intent]) -> tuple[str, ...]:
    """Holds of ours that belong to no intent: their change was never written down, or has ended.

    Those on whole nodes are left to the steering, which knows them by the nodes' labels.
    """
    wanted = {name for intent in intents for name in hold_names(intent)}
    ours = (name for name in names if name.startswith("mig-") and not name.startswith(NODE_HOLD))
    return tuple(sorted(name for name in ours if name not in wanted))


def outcome_text(change: LayoutChange) -> str:
    made = ", ".join(f"{place.profile} at {place.start}" for place in change.request.create)
    if change.state is ChangeState.DONE:
        return f"made {made}" if made else "done"
    return f"not made: {change.reason or change.state.value}"


def encode(intents: Iterable[Intent]) -> str:
    entries = [_to_json(intent) for intent in sorted(intents, key=lambda intent: intent.id)]
    return orjson.dumps({"v": VERSION, "intents": entries}).decode()


def decode(text: str) -> tuple[Intent, ...]:
    """Raise InvalidRequestError if it can't be read."""
    try:
        document = orjson.loads(text)
        if document["v"] != VERSION:
            raise InvalidRequestError(f"version {document['v']!r} of the intents is not known")
        return tuple(_from_json(entry) for entry in document["intents"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"the intents can't be read: {error}") from None


def _to_json(intent: Intent) -> dict[str, Any]:
    request = intent.request
    sharing = request.sharing
    return {
        "id": request.id,
        "node": intent.node_name,
        "nodeUID": intent.node_uid,
        "gpu": request.gpu_uuid,
        "mig": request.mig_enabled,
        "destroy": [[place.profile, place.start] for place in request.destroy],
        "create": [[place.profile, place.start] for place in request.create],
        "sharing": None
        if sharing is None
        else [
            sharing.mode.value,
            sharing.thread_percentage,
            sharing.memory_mib,
            sharing.time_slice,
            sharing.least_milli,
        ],
        "pods": list(intent.pods),
        "began": intent.began,
        "leavers": [
            [one.pod.namespace, one.pod.name, one.pod.uid, one.placement.profile, one.placement.start]
            for one in intent.leavers
        ],
    }


def _sharing_to_json(sharing: Sharing) -> list[Any]:
    numbers = sharing.thread_percentage, sharing.memory_mib, sharing.time_slice, sharing.least_milli
    return [sharing.mode.value, *numbers]


def _from_json(entry: Mapping[str, Any]) -> Intent:
    sharing = entry["sharing"]
    request = LayoutRequest(
        id=str(entry["id"]),
        gpu_uuid=str(entry["gpu"]),
        mig_enabled=entry["mig"],
        destroy=tuple(MigPlacement(int(start), str(profile)) for profile, start in entry["destroy"]),
        create=tuple(MigPlacement(int(start), str(profile)) for profile, start in entry["create"]),
        sharing=None if sharing is None else Sharing(SharingMode(sharing[0]), *map(int, sharing[1:])),
    )
    pods = tuple(str(uid) for uid in entry["pods"])
    leavers = tuple(
        Leaver(PodRef(str(namespace), str(name), str(uid)), MigPlacement(int(start), str(profile)))
        for namespace, name, uid, profile, start in entry.get("leavers", ())
    )
    return Intent(request, str(entry["node"]), str(entry["nodeUID"]), pods, str(entry["began"]), leavers)
