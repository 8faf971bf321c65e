"""Pods that have GPUs, as those who may have to leave: what evicting them loses, and who is protected.

Read from the informer when somebody plans, in short steps; a pod that did not change is read once.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of, uid_of
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.placement.constraints.objects import SchedulablePod
from gpuloom.placement.gangs.sites import Steps
from gpuloom.placement.gangs.victims import Victim
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.losses import Run, lost_nano_usd, run_of
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import priority_of
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.planning.sites import A_STEP, Grounds, Observed, SiteBook

MOST_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that has GPUs; `milli` of them, 0 where that is not known."""

    pod: SchedulablePod
    node_name: str
    run: Run
    leaving: bool
    milli: int
    gang: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """`protected` are UIDs of victims who may not be evicted. `leaving`: UIDs by node of pods about to go."""

    victims: list[Victim]
    protected: frozenset[str]
    leaving: dict[str, frozenset[str]]


class Tenants:
    def __init__(
        self, pods: Observed, ledger: Ledger, book: SiteBook, clock: Clock, min_run_s: float
    ) -> None:
        self._pods = pods
        self._ledger = ledger
        self._book = book
        self._clock = clock
        self._min_run_s = min_run_s
        self._read: OrderedDict[str, tuple[str, Tenant | None]] = OrderedDict()

    def candidates(self, grounds: Grounds, priority: int) -> Steps[Candidates]:
        """Everybody below this priority, or in a gang, who has GPUs; and who of them may not be evicted."""
        victims: list[Victim] = []
        protected: set[str] = set()
        leaving: dict[str, frozenset[str]] = {}
        now = self._clock.now()
        for count, raw in enumerate(self._pods.objects(), 1):
            if count % A_STEP == 0:
                yield
            is_leaving = bool(metadata_of(raw).get("deletionTimestamp"))
            if priority_of(raw) >= priority and not is_leaving and not gang_of(raw):
                continue
            tenant = self._tenant(raw)
            site = None if tenant is None else grounds.sites.get(tenant.node_name)
            if tenant is None or site is None:
                continue
            run = tenant.run
            if is_leaving and run.is_about_to_go(now):
                leaving[tenant.node_name] = leaving.get(tenant.node_name, frozenset()) | {tenant.pod.uid}
            if run.protected or tenant.leaving or run.is_young(now, self._min_run_s):
                protected.add(tenant.pod.uid)
            lost_s = run.lost_s(now)
            share = min(1.0, tenant.milli / max(1, MILLI_PER_GPU * len(site.view.gpus)))
            lost = lost_nano_usd(lost_s, share, site.node.labels) if lost_s else 0
            victims.append(Victim(tenant.pod, tenant.node_name, lost_s, lost, tenant.gang))
        return Candidates(victims, frozenset(protected), leaving)

    def _tenant(self, raw: JsonObject) -> Tenant | None:
        """None for a pod that has no GPUs now. One that did not change is read once."""
        uid, version = uid_of(raw), resource_version_of(raw)
        known = self._read.get(uid)
        if known is not None and known[0] == version:
            return known[1]
        node_name, observed, read = bound_node(raw), self._ledger.pod(uid), self._book.pod(raw)
        tenant: Tenant | None = None
        if node_name and read is not None and observed is not None and not is_terminal(raw):
            given = observed.allocation.devices if observed.allocation is not None else ()
            leaving = bool(metadata_of(raw).get("deletionTimestamp"))
            milli = sum(item.milli for item in given)
            tenant = Tenant(read, node_name, run_of(raw), leaving, milli, gang_of(raw))
        self._read[uid] = version, tenant
        self._read.move_to_end(uid)
        if len(self._read) > MOST_REMEMBERED:
            self._read.popitem(last=False)
        return tenant
