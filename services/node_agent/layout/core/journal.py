"""What a node remembers of its layouts: what each GPU is to be, changes under way and those that ended. Pure.

A change is in the journal before its first step and leaves it after its last one, so whoever opens the
journal next knows what was meant and what was there before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import ChangeState, GpuLayout, LayoutChange, LayoutRequest, Sharing
from gpuloom.model.mig import MigPlacement
from services.node_agent.layout.core.steps import Before, Goal, backward_goal, before_of, forward_goal

VERSION = 1
KEPT_CHANGES = 64


@dataclass(frozen=True, slots=True)
class OpenChange:
    """A change under way. `back`: it failed, and what was done is being undone."""

    request: LayoutRequest
    before: Before
    back: bool = False
    reason: str = ""

    @property
    def goal(self) -> Goal:
        goal_of = backward_goal if self.back else forward_goal
        return goal_of(self.request, self.before)

    @property
    def shown(self) -> LayoutChange:
        state = ChangeState.ROLLING_BACK if self.back else ChangeState.APPLYING
        return LayoutChange(self.request, state, self.reason)


@dataclass(frozen=True, slots=True)
class Journal:
    """`wanted` is what each GPU is to be after a boot, by UUID; of others nothing is wanted."""

    boot_id: str = ""
    wanted: Mapping[str, Before] = field(default_factory=dict)
    open: Mapping[str, OpenChange] = field(default_factory=dict)
    ended: tuple[LayoutChange, ...] = ()

    def find(self, change_id: str) -> LayoutChange | None:
        under_way = (change.shown for change in self.open.values())
        return next((c for c in (*under_way, *self.ended) if c.request.id == change_id), None)

    def begin(self, request: LayoutRequest, layout: GpuLayout) -> "Journal":
        change = OpenChange(request, before_of(layout))
        return replace(self, open={**self.open, request.gpu_uuid: change})

    def turn_back(self, gpu_uuid: str, reason: str) -> "Journal":
        change = replace(self.open[gpu_uuid], back=True, reason=reason)
        return replace(self, open={**self.open, gpu_uuid: change})

    def end(self, layout: GpuLayout, state: ChangeState, reason: str) -> "Journal":
        """The GPU is to be from now on what it is."""
        change = LayoutChange(self.open[layout.gpu_uuid].request, state, reason)
        others = {uuid: change for uuid, change in self.open.items() if uuid != layout.gpu_uuid}
        ended = (change, *self.ended)[:KEPT_CHANGES]
        return replace(self.adopt(layout), open=others, ended=ended)

    def adopt(self, layout: GpuLayout) -> "Journal":
        return replace(self, wanted={**self.wanted, layout.gpu_uuid: before_of(layout)})


def restoring(wanted: Before, layout: GpuLayout, boot_changed: bool) -> Goal | None:
    """What is to be made again of what was wanted; None if what is there is adopted.

    Instances and, on some cards, the mode do not survive a boot or a reset, which takes all of them. One that
    alone is missing was taken away by somebody who meant it.
    """
    lost = wanted.placements - layout.usable
    reset = lost == wanted.placements or (wanted.enabled and not layout.mig_enabled)
    if not (lost or wanted.enabled != layout.mig_enabled or wanted.sharing != layout.sharing):
        return None
    if not boot_changed and not (reset and wanted.placements):
        # A daemon ends with the container of its agent; nobody else ends one on purpose.
        ended = wanted.sharing not in (layout.sharing, Sharing())
        return Goal(sharing=wanted.sharing) if ended else None
    # Half an instance is completed: what is to be there is never to be absent too.
    return Goal(wanted.enabled or None, present=wanted.placements, sharing=wanted.sharing)


def encode(journal: Journal) -> bytes:
    document = {
        "v": VERSION,
        "boot": journal.boot_id,
        "wanted": {uuid: _before(wanted) for uuid, wanted in sorted(journal.wanted.items())},
        "open": [
            {
                "request": _request(change.request),
                "before": _before(change.before),
                "back": change.back,
                "reason": change.reason,
            }
            for _, change in sorted(journal.open.items())
        ],
        "ended": [
            {"request": _request(change.request), "state": change.state.value, "reason": change.reason}
            for change in journal.ended
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def decode(content: bytes) -> Journal:
    """Raise InvalidRequestError if it is no journal of this version."""
    try:
        document = orjson.loads(content)
        if document["v"] != VERSION:
            raise InvalidRequestError(f"version {document['v']!r} of the journal is not known")
        changes = [_open_from(entry) for entry in document["open"]]
        return Journal(
            boot_id=str(document["boot"]),
            wanted={str(uuid): _before_from(entry) for uuid, entry in document["wanted"].items()},
            open={change.request.gpu_uuid: change for change in changes},
            ended=tuple(
                LayoutChange(
                    _request_from(entry["request"]), ChangeState(entry["state"]), str(entry["reason"])
                )
                for entry in document["ended"]
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"the journal can't be read: {error}") from None


def _open_from(entry: Mapping[str, Any]) -> OpenChange:
    return OpenChange(
        _request_from(entry["request"]),
        _before_from(entry["before"]),
        bool(entry["back"]),
        str(entry["reason"]),
    )


def _request(request: LayoutRequest) -> dict[str, Any]:
    return {
        "id": request.id,
        "gpu": request.gpu_uuid,
        "mig": request.mig_enabled,
        "destroy": _placements(request.destroy),
        "create": _placements(request.create),
        "sharing": None if request.sharing is None else _sharing(request.sharing),
    }


def _request_from(entry: Mapping[str, Any]) -> LayoutRequest:
    return LayoutRequest(
        id=str(entry["id"]),
        gpu_uuid=str(entry["gpu"]),
        mig_enabled=entry["mig"],
        destroy=_placements_from(entry["destroy"]),
        create=_placements_from(entry["create"]),
        sharing=None if entry["sharing"] is None else _sharing_from(entry["sharing"]),
    )


def _before(before: Before) -> dict[str, Any]:
    return {
        "mig": before.enabled,
        "instances": _placements(tuple(sorted(before.placements))),
        "sharing": _sharing(before.sharing),
    }


def _before_from(entry: Mapping[str, Any]) -> Before:
    placements = frozenset(_placements_from(entry["instances"]))
    return Before(bool(entry["mig"]), placements, _sharing_from(entry["sharing"]))


def _placements(placements: tuple[MigPlacement, ...]) -> list[dict[str, Any]]:
    return [{"profile": placement.profile, "start": placement.start} for placement in placements]


def _placements_from(entries: list[Mapping[str, Any]]) -> tuple[MigPlacement, ...]:
    return tuple(MigPlacement(int(entry["start"]), str(entry["profile"])) for entry in entries)


def _sharing(sharing: Sharing) -> dict[str, Any]:
    return {
        "mode": sharing.mode.value,
        "threads": sharing.thread_percentage,
        "memoryMib": sharing.memory_mib,
        "timeSlice": sharing.time_slice,
        "leastMilli": sharing.least_milli,
    }


def _sharing_from(entry: Mapping[str, Any]) -> Sharing:
    return Sharing(
        SharingMode(entry["mode"]),
        int(entry["threads"]),
        int(entry["memoryMib"]),
        int(entry["timeSlice"]),
        int(entry.get("leastMilli", 0)),
    )
