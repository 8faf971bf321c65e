"""Nodes as placement sees them: the ledger's claims and the device facts, put together.

A view is made when somebody asks and kept until its node changes, so that a filter over a quiet cluster
costs next to nothing. Whatever is not known closes the node, with the reason.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from services.scheduler_extender.ledger import Ledger
from services.scheduler_extender.occupancy import Taken, closed_reason, taken_by
from services.scheduler_extender.pods import HostShare

ViewOf = Callable[[str], NodeView | None]

NO_FACTS = "no device facts from its agent"
STALE = "device facts are stale"
SLICE_GONE = "a pod has a MIG slice that the GPU no longer has"


@dataclass(frozen=True, slots=True)
class HostTotals:
    """What pods may use of a node in all."""

    cpu_milli: int
    memory_bytes: int


class Hosts:
    """CPU and memory accounts of all nodes."""

    def __init__(self) -> None:
        self._totals: dict[str, HostTotals] = {}
        self._shares: dict[str, HostShare] = {}
        self._used: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def set_totals(self, node_name: str, totals: HostTotals | None) -> None:
        if totals is None:
            self._totals.pop(node_name, None)
        else:
            self._totals[node_name] = totals

    def set_share(self, pod_uid: str, share: HostShare | None) -> set[str]:
        """Account for a pod; returns the names of the nodes it came to or left."""
        before = self._shares.pop(pod_uid, None)
        if before == share:
            if share is not None:
                self._shares[pod_uid] = share
            return set()
        for entry, sign in ((before, -1), (share, 1)):
            if entry is not None:
                used = self._used[entry.node_name]
                used[0] += sign * entry.cpu_milli
                used[1] += sign * entry.memory_bytes
        if share is not None:
            self._shares[pod_uid] = share
        return {entry.node_name for entry in (before, share) if entry is not None}

    def capacity(self, node_name: str) -> HostCapacity | None:
        totals = self._totals.get(node_name)
        if totals is None:
            return None
        used = self._used.get(node_name, [0, 0])
        return HostCapacity(
            totals.cpu_milli,
            max(0, totals.cpu_milli - used[0]),
            totals.memory_bytes,
            max(0, totals.memory_bytes - used[1]),
        )


class Views:
    """`facts_are_stale` says whether the device facts as a whole are too old to be used."""

    def __init__(self, ledger: Ledger, hosts: Hosts, facts_are_stale: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self._facts_are_stale = facts_are_stale
        self._kept: dict[str, NodeView] = {}
        self._stale = True
        self._freshened = False

    def forget(self, node_name: str) -> None:
        """Something about this node changed."""
        self._kept.pop(node_name, None)

    def take_freshened(self) -> bool:
        """Whether the facts, stale as a whole, came to be used again since the last call."""
        self._drop_changed()
        freshened, self._freshened = self._freshened, False
        return freshened

    def view(self, node_name: str, without_pod: str = "") -> NodeView | None:
        """The node now; None if Kubernetes shows no such node. `without_pod` gets its own holds back."""
        return self.viewer(without_pod)(node_name)

    def viewer(self, without_pod: str = "") -> "ViewOf":
        """Many nodes at this moment: ask what it gives for each, without an await in between."""
        self._drop_changed()
        return partial(self._view, without_pod=without_pod)

    def _view(self, node_name: str, without_pod: str) -> NodeView | None:
        uid = self._ledger.node_uid(node_name)
        if uid is None:
            return None
        if without_pod and self._ledger.attempt(without_pod, uid) is not None:
            return self._build(node_name, uid, without_pod)
        if node_name not in self._kept:
            self._kept[node_name] = self._build(node_name, uid, "")
        return self._kept[node_name]

    def _drop_changed(self) -> None:
        stale = self._facts_are_stale()
        if stale != self._stale:
            self._stale = stale
            self._freshened = self._freshened or not stale
            self._kept.clear()
        for name in self._ledger.take_touched():
            self.forget(name)

    def _build(self, node_name: str, uid: str, without_pod: str) -> NodeView:
        facts = self._ledger.facts(node_name)
        if facts is None:
            return _closed(node_name, uid, NO_FACTS)
        if self._stale:
            return _closed(node_name, uid, STALE)
        if not facts.trusted:
            return _closed(node_name, uid, facts.untrusted_reasons[0])
        claims = self._ledger.claims(node_name, without_pod)
        state = facts.state
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        taken = taken_by(claims, gpus)
        closed = {gpu.gpu_uuid: gpu.reason for gpu in facts.closed_gpus}
        return NodeView(
            name=node_name,
            uid=uid,
            mode=state.mode,
            delivery=state.delivery,
            gpus=tuple(
                _gpu_view(gpu, taken.get(gpu.uuid, Taken()), closed.get(gpu.uuid, "")) for gpu in state.gpus
            ),
            topology=state.topology,
            closed_reason=closed_reason(claims) or _unknown_device(taken, gpus),
            host=self._hosts.capacity(node_name),
        )


def _closed(node_name: str, uid: str, reason: str) -> NodeView:
    return NodeView(node_name, uid, NodeMode.UNKNOWN, Delivery.UNKNOWN, (), closed_reason=reason)


def _unknown_device(taken: dict[str, Taken], gpus: dict[str, Gpu]) -> str:
    """A claim on a GPU that the node does not show: something there is not as we believe it to be."""
    return "a pod on the node has a GPU that its agent does not show" if taken.keys() - gpus.keys() else ""


def _gpu_view(gpu: Gpu, taken: Taken, distrust: str) -> GpuView:
    model = load_catalog().find_gpu(gpu.model)
    slices = {instance: DeviceRef(gpu.uuid, instance.placement) for instance in gpu.mig_instances}
    # Whatever was cut instead of that slice may overlap it.
    slice_gone = SLICE_GONE if taken.mig - set(slices.values()) else ""
    return GpuView(
        gpu=gpu,
        free_milli=max(0, MILLI_PER_GPU - taken.milli),
        free_memory_mib=max(0, gpu.memory_mib - taken.memory_mib),
        free_mig=tuple(
            instance
            for instance, device in slices.items()
            if not taken.milli and device not in taken.mig and not instance.fault
        ),
        mig_slices=0 if model is None else model.mig_slices,
        closed_reason=distrust or taken.closed_reason or slice_gone,
    )
