"""What a change of a pod or a node means for the queue and the cache. Pure but for the state it is given."""

import logging
from collections.abc import Callable

from gpuloom.codec.scheduling import schedulable_node, schedulable_pod
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.sim.scheduler.loop import SchedulerState

_log = logging.getLogger(__name__)

_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


class ClusterFollower:
    """`on_pod` and `on_node` are handlers of watches; `monotonic` is the loop's clock."""

    def __init__(self, state: SchedulerState, scheduler_name: str, monotonic: Callable[[], float]) -> None:
        self._state = state
        self._scheduler_name = scheduler_name
        self._monotonic = monotonic

    def on_pod(self, change: Change) -> None:
        new = change.new
        if new is None or _ended(new):
            self._gone(uid_of(change.object), freed=change.old is not None and _holds_room(change.old))
        elif _node_of(new):
            self._bound(new)
        elif (
            _is_ready_to_schedule(new)
            and (new.get("spec") or {}).get("schedulerName", "default-scheduler") == self._scheduler_name
        ):
            self._pending(new, changed=change.old is None or asks_differ(change.old, new))
        else:
            self._gone(uid_of(new), freed=False)

    def on_node(self, change: Change) -> None:
        name = key_of(change.object)[1]
        if change.new is None:
            self._state.cache.remove_node(name)
            return
        try:
            self._state.cache.set_node(schedulable_node(change.new))
        except InvalidRequestError as error:
            _log.warning("node ignored", extra={"node": name, "error": str(error)})
            self._state.cache.remove_node(name)
            return
        if change.old is None or node_differs(change.old, change.new):
            self._wake()

    def _gone(self, uid: str, *, freed: bool) -> None:
        self._state.queue.remove(uid)
        self._state.cache.remove(uid)
        if freed:
            self._wake()

    def _bound(self, pod: JsonObject) -> None:
        self._state.queue.remove(uid_of(pod))
        try:
            self._state.cache.observe(schedulable_pod(pod), _node_of(pod))
        except InvalidRequestError as error:
            _log.warning("pod not counted", extra={"pod": "/".join(key_of(pod)), "error": str(error)})

    def _pending(self, pod: JsonObject, *, changed: bool) -> None:
        try:
            self._state.queue.put(schedulable_pod(pod), self._monotonic(), changed=changed)
        except InvalidRequestError as error:
            _log.warning("pod ignored", extra={"pod": "/".join(key_of(pod)), "error": str(error)})
            return
        self._state.changed.set()

    def _wake(self) -> None:
        self._state.queue.wake_all(self._monotonic())
        self._state.changed.set()


def asks_differ(old: JsonObject, new: JsonObject) -> bool:
    """Whether the pod wants something else than before; its status alone wakes nobody."""
    return old.get("spec") != new.get("spec") or any(
        metadata_of(old).get(key) != metadata_of(new).get(key) for key in ("labels", "annotations")
    )


def node_differs(old: JsonObject, new: JsonObject) -> bool:
    """Whether the node may take other pods than before; a heartbeat is no news."""
    return _placing_facts(old) != _placing_facts(new)


def _placing_facts(node: JsonObject) -> tuple[object, ...]:
    metadata, spec, status = metadata_of(node), node.get("spec") or {}, node.get("status") or {}
    return (
        metadata.get("labels"),
        metadata.get("annotations"),
        spec.get("taints"),
        bool(spec.get("unschedulable")),
        status.get("allocatable"),
        [(entry.get("type"), entry.get("status")) for entry in status.get("conditions") or ()],
    )


def _node_of(pod: JsonObject) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _ended(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in _TERMINAL_PHASES


def _holds_room(pod: JsonObject) -> bool:
    return bool(_node_of(pod)) and not _ended(pod)


def _is_ready_to_schedule(pod: JsonObject) -> bool:
    gates = (pod.get("spec") or {}).get("schedulingGates")
    return not gates and not metadata_of(pod).get("deletionTimestamp")
