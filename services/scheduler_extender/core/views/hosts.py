"""CPU, memory and number of pods of nodes, and what pods and binds under way take of them. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.model.ledger import HostAccount
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.objects.pods import HostShare


@dataclass(frozen=True, slots=True)
class HostTotals:
    """What pods may use of a node in all."""

    cpu_milli: int
    memory_bytes: int
    pods: int = 0


class Hosts:
    """The accounts of all nodes."""

    def __init__(self) -> None:
        self._totals: dict[str, HostTotals] = {}
        self._shares: dict[str, HostShare] = {}
        self._used: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def set_totals(self, node_name: str, totals: HostTotals | None) -> bool:
        """Whether that is news."""
        if totals is None:
            return self._totals.pop(node_name, None) is not None
        before, self._totals[node_name] = self._totals.get(node_name), totals
        return before != totals

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
                used[2] += sign
        if share is not None:
            self._shares[pod_uid] = share
        return {entry.node_name for entry in (before, share) if entry is not None}

    def accounts_for(self, pod_uid: str) -> bool:
        return pod_uid in self._shares

    def account(self, node_name: str, attempts: Iterable[Attempt] = ()) -> HostAccount | None:
        """With these binds to the node, but for those whose pod is accounted for there."""
        totals = self._totals.get(node_name)
        if totals is None:
            return None
        cpu_milli, memory_bytes, pods = self._used.get(node_name, (0, 0, 0))
        for attempt in attempts:
            share = self._shares.get(attempt.pod.uid)
            if share is None or share.node_name != node_name:
                cpu_milli += attempt.cpu_milli
                memory_bytes += attempt.memory_bytes
                pods += 1
        return HostAccount(totals.cpu_milli, cpu_milli, totals.memory_bytes, memory_bytes, totals.pods, pods)
