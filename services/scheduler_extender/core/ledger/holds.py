"""What is taken out of placement, for whom, and what may be taken.

A hold counts from the moment that it is begun here, before Kubernetes has it, until it is known to be gone
there: its end is never a matter of time, but of the object's deletion, so that a renewal and an expiry can't
both win. Fed by the informer of GPUHolds and by the holds that are taken here; does no I/O, knows no clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuloom.kube.objects import is_older_version
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import Claim, Hold
from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.occupancy.holds import conflicting, overlapping
from gpuloom.placement.occupancy.nominations import Asker

ANYWHERE = ""
"""In place of a node's name: holds that may be about any."""


class Holds:
    def __init__(self) -> None:
        self._observed: dict[str, Hold] = {}
        self._begun: dict[str, Hold] = {}
        self._by_node: dict[str, set[str]] = defaultdict(set)
        self._by_owner: dict[str, set[str]] = defaultdict(set)
        """Names of holds by whom they let through."""
        self._touched: set[str] = set()
        self._reopened: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._observed or self._begun)

    def __len__(self) -> int:
        return len(self._observed.keys() | self._begun.keys())

    def observe(self, hold: Hold) -> None:
        """As Kubernetes has it. What a watch shows may be older than what the answer to a write has shown."""
        known = self._observed.get(hold.name)
        if known is not None and is_older_version(hold.version, known.version):
            return
        self._change(hold.name, hold, self._observed)
        self._begun.pop(hold.name, None)

    def gone(self, name: str, uid: str) -> None:
        """Kubernetes no longer has the one of this UID; there may be a namesake."""
        known = self._observed.get(name)
        if known is not None and known.uid == uid:
            self._change(name, None, self._observed)

    def abandon(self, name: str) -> None:
        """What was begun will not be, or nobody relies on it."""
        self._change(name, None, self._begun)

    def rewind(self) -> None:
        """Kubernetes was set back to an earlier state: what is shown next is true, however old."""
        self._observed = {name: replace(hold, version="") for name, hold in self._observed.items()}

    def begin(self, hold: Hold) -> None:
        """It counts from here on, whatever becomes of its object."""
        self._change(hold.name, hold, self._begun)

    def begun(self) -> tuple[Hold, ...]:
        """Those that Kubernetes has not been seen to have."""
        return tuple(self._begun.values())

    def get(self, name: str) -> Hold | None:
        return self._observed.get(name) or self._begun.get(name)

    def all(self) -> list[Hold]:
        """By name."""
        return [hold for name in sorted(self._observed.keys() | self._begun) if (hold := self.get(name))]

    def on(self, node_name: str, asker: Asker | None = None) -> tuple[Hold, ...]:
        """That may be about this node, by name; without those that let this pod through."""
        if not self:
            return ()
        names = self._by_node.get(node_name, set()) | self._by_node.get(ANYWHERE, set())
        let_through = () if asker is None else {hold.name for hold in self._open_to(asker)}
        return tuple(
            hold for name in sorted(names) if name not in let_through and (hold := self.get(name)) is not None
        )

    def nodes_open_to(self, asker: Asker) -> list[str]:
        """Names of nodes where this pod is let through something that is held."""
        return sorted({hold.node_name for hold in self._open_to(asker)})

    def opens(self, node_name: str, asker: Asker) -> bool:
        """Whether this pod is let through something that is held on the node."""
        return any(hold.node_name == node_name for hold in self._open_to(asker))

    def for_asker(self, asker: Asker) -> list[Hold]:
        """Those that let this pod through, by name."""
        return self._open_to(asker)

    def of_pod(self, pod_uid: str) -> list[Hold]:
        """Those that are for the pod of this UID, by name."""
        if not self:
            return []
        found = (self.get(name) for name in sorted(self._by_owner.get(f"uid {pod_uid}", ())))
        return [hold for hold in found if hold is not None and hold.is_for_pod(pod_uid, "")]

    def keeps_for(self, pod_uid: str, pod_name: str) -> bool:
        """Whether something is held for this pod; `pod_name` is namespace/name."""
        return bool(self._open_to(Asker(pod_uid, name=pod_name)))

    def take_touched(self) -> set[str]:
        """Names of nodes whose holds changed since the last call; `ANYWHERE` among them means all."""
        touched, self._touched = self._touched, set()
        return touched

    def take_reopened(self) -> set[str]:
        """Names of nodes where a hold has ended since the last call."""
        reopened, self._reopened = self._reopened, set()
        return reopened

    def _change(self, name: str, hold: Hold | None, place: dict[str, Hold]) -> None:
        before = place.pop(name, None)
        if before is not None:
            self._touched.add(before.node_name)
            if hold is None:
                self._reopened.add(before.node_name)
        if hold is not None:
            place[name] = hold
            self._by_node[hold.node_name].add(name)
            if before != hold:
                self._touched.add(hold.node_name)
            self._by_owner[hold.lets_through].add(name)
        if before is not None and name not in self._observed and name not in self._begun:
            self._forget(before)

    def _forget(self, hold: Hold) -> None:
        for index, key in ((self._by_node, hold.node_name), (self._by_owner, hold.lets_through)):
            index[key].discard(hold.name)
            if not index[key]:
                del index[key]

    def _open_to(self, asker: Asker) -> list[Hold]:
        """A hold that somebody rewrote by hand may be found by what it was before; so each is asked."""
        if not self or not asker.uid:
            return []
        keys = [f"uid {asker.uid}", f"pod {asker.name}", f"gang {asker.gang}"]
        keys += [f"gpureservation {name}" for name in asker.reservations]
        found = {name for key in keys for name in self._by_owner.get(key, ())}
        holds = [hold for name in sorted(found) if (hold := self.get(name)) is not None]
        return [
            hold
            for hold in holds
            if hold.is_for_pod(asker.uid, asker.name)
            or hold.is_for_gang(asker.gang)
            or hold.is_for_reservation(asker.reservations)
        ]


def take_refusal(
    wanted: Hold, claims: Sequence[Claim], holds: Sequence[Hold], facts: NodeFacts | None, allow_used: bool
) -> str:
    """Why this can't be taken out of placement now; empty if it can. `holds` are those of the node."""
    other = conflicting(holds, wanted)
    if other is not None:
        return f"it is held already: {other.name} ({other.reason or other.problem})"
    if wanted.device is not None:
        problem = _unknown_device(wanted, facts)
        if problem:
            return problem
    if allow_used:
        return ""
    return _in_use(wanted, claims, facts) or _no_room(wanted, claims, holds, facts)


def _unknown_device(wanted: Hold, facts: NodeFacts | None) -> str:
    if facts is None or not facts.trusted:
        return "the devices of the node are not known now"
    if wanted.device is None or any(gpu.uuid == _uuid(wanted) for gpu in facts.state.gpus):
        return ""
    return "the node has no such GPU"


def _in_use(wanted: Hold, claims: Iterable[Claim], facts: NodeFacts | None) -> str:
    """Where the kubelet chooses, what a pod is predicted to have counts as its own."""
    for claim in claims:
        if claim.devices is None or claim.problem:
            return f"it is not known which devices {claim.pod} has"
        if claim.advisory and wanted.device is not None and not wanted.lets_pods_through:
            return f"its kubelet has not shown yet which devices {claim.pod} has"
        given = [item.device for item in claim.devices]
        if wanted.device is None:
            if given or claim.unlisted:
                return f"it is in use by {claim.pod}"
            continue
        mine = [device for device in given if device.gpu_uuid == _uuid(wanted)]
        if _is_share(wanted):
            mine = [device for device in mine if device.mig is not None]
        place = wanted.device.device.mig
        if place is not None and facts is not None:
            gpu = next(gpu for gpu in facts.state.gpus if gpu.uuid == _uuid(wanted))
            in_the_way = overlapping(gpu, place)
            if in_the_way is not None:
                mine = [device for device in mine if device.mig is None or device in in_the_way]
        if mine or (claim.unlisted and facts is not None and facts.state.mode is NodeMode.NVIDIA):
            return f"it is in use by {claim.pod}"
    return ""


def _no_room(wanted: Hold, claims: Iterable[Claim], holds: Iterable[Hold], facts: NodeFacts | None) -> str:
    """Whether a share is left beside what others have and hold of the card."""
    if not _is_share(wanted) or wanted.device is None or facts is None:
        return ""
    gpu = next(gpu for gpu in facts.state.gpus if gpu.uuid == _uuid(wanted))
    shares = [item for claim in claims for item in claim.devices or () if item.device.gpu_uuid == gpu.uuid]
    shares += [
        hold.device for hold in holds if hold.device and hold.name != wanted.name and _uuid(hold) == gpu.uuid
    ]
    shares.append(wanted.device)
    memory_mib = sum(item.memory_mib or -(-gpu.memory_mib * item.milli // 1000) for item in shares)
    if sum(item.milli for item in shares) > MILLI_PER_GPU or memory_mib > gpu.memory_mib:
        return "the GPU has not that much left"
    return ""


def _is_share(hold: Hold) -> bool:
    return hold.device is not None and hold.device.device.mig is None and hold.device.milli < MILLI_PER_GPU


def _uuid(hold: Hold) -> str:
    return "" if hold.device is None else hold.device.device.gpu_uuid
