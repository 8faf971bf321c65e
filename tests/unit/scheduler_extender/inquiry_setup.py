"""Questions to an extender that knows a few nodes and pods."""

from collections.abc import Callable, Iterable, Sequence

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.score import ScoreWeights
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.schedulers import SchedulerNames
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.quarantine import Quarantine
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.inquiries.inquiries import Inquiries, Records
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.state.ledger_feed import LedgerFeed
from tests.unit.scheduler_extender.builders import HandClock, a_node


class Shown:
    """What an informer would show."""

    def __init__(self, objects: Iterable[JsonObject] = ()) -> None:
        self._objects = {key_of(obj): obj for obj in objects}

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self._objects.get((namespace, name))

    def objects(self) -> Sequence[JsonObject]:
        return list(self._objects.values())


class InquiryDesk:
    def __init__(
        self,
        *facts: NodeFacts,
        pods: Iterable[JsonObject] = (),
        clock: Clock | None = None,
        unready_reason: Callable[[], str] = lambda: "",
        schedulers: Iterable[str] = ("default-scheduler",),
        cluster_note: Callable[[], str] = lambda: "",
    ) -> None:
        self.clock = clock or HandClock()
        self.state = ClusterState(Ledger(30.0), lambda: False, self.clock)
        self.decisions = DecisionLog(self.clock)
        self.quarantine = Quarantine()
        self.schedulers = SchedulerNames(schedulers)
        nodes = [a_node(node.state.node_name, node.state.node_uid) for node in facts]
        shown = list(pods)
        for node in nodes:
            self.state.observe_node(Change(None, node))
        for node_facts in facts:
            self.state.observe_facts(node_facts.state.node_uid, node_facts)
        for pod in shown:
            self.state.observe_pod(Change(None, pod))
        records = Records(
            self.state.views,
            self.decisions,
            self.quarantine,
            Shown(nodes),
            Shown(shown),
            self.schedulers,
            cluster_note,
        )
        judge = Judge(Evaluator(ScoreWeights()))
        self.feed = LedgerFeed(self.state.views, unready_reason, self.clock)
        self.inquiries = Inquiries(records, judge, unready_reason, self.clock)
