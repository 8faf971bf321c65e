"""The extender's bind, on two small nodes and a scripted Kubernetes."""

from collections.abc import Iterable

from gpuloom.errors import GpuloomError
from gpuloom.kube.cache import Change
from gpuloom.model.gpu import Gpu
from gpuloom.model.node import NodeMode, PodRef
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.wire import BindCall
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from tests.unit.scheduler_extender.builders import HandClock, JsonObject, a_gpu, a_node, a_ref, some_facts
from tests.unit.scheduler_extender.kubernetes import Answer, ScriptedApi

POD = a_ref("pod")


class Desk:
    """An extender that knows two nodes, n1 and n2, of two cards each, and the pods its informer shows."""

    def __init__(
        self,
        *pods: JsonObject,
        outcomes: Iterable[GpuloomError | Answer | None] = (),
        mode: NodeMode = NodeMode.GPULOOM,
        gpus: tuple[Gpu, ...] = (),
        timeout_s: float = 4.0,
    ) -> None:
        self.clock = HandClock()
        self.api = ScriptedApi(*pods, outcomes=outcomes)
        self.state = ClusterState(Ledger(30.0), lambda: False, self.clock)
        self.decisions = DecisionLog(self.clock)
        self.context = BindContext(self.state.ledger, self.state.views, self.decisions, self.clock)
        self.bindings = Bindings(self.context, self.api, self.api, timeout_s=timeout_s)
        for name in ("n1", "n2"):
            self.state.observe_node(Change(None, a_node(name)))
            cards = gpus or (a_gpu(f"GPU-{name}-0", 0), a_gpu(f"GPU-{name}-1", 1))
            self.state.observe_facts(f"uid-{name}", some_facts(name, *cards, mode=mode))
        for pod in pods:
            self.state.observe_pod(Change(None, pod))

    async def bind(self, node: str = "n1", pod: PodRef = POD) -> str:
        return await self.bindings.bind(BindCall(pod.namespace, pod.name, pod.uid, node))

    def observe(self, pod: JsonObject) -> None:
        """The informer shows it."""
        self.api.show(pod)
        self.state.observe_pod(Change(None, pod))

    def free_cards(self, node: str = "n1") -> int:
        view = self.state.views.view(node)
        assert view is not None
        return 0 if view.closed_reason else sum(gpu.untouched for gpu in view.gpus)

    def held_cards(self, node: str = "n1") -> int:
        return 2 - self.free_cards(node)
