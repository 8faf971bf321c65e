"""How explain and what-if judge a node: by the functions of filter and bind, and by CPU and memory too.

kube-scheduler looks at CPU and memory before it asks us, so filter need not; whoever asks without
kube-scheduler in front needs both.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuloom.kube.objects import JsonObject
from gpuloom.model.explanation import Offer
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import PodRequest
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal, fit, host_refusal
from gpuloom.placement.potential import Prices, neutral_prices
from gpuloom.placement.score import Scored, best_of
from gpuloom.placement.strategies import Fitting, Order
from services.scheduler_extender.core.verbs.evaluator import Evaluation, Evaluator, Outcome


@dataclass(frozen=True, slots=True)
class Judge:
    """`prices` are those of bind, `order_of` the orders of strategies that filter follows."""

    evaluator: Evaluator
    prices: Callable[[], Prices] = neutral_prices
    order_of: Callable[[JsonObject], Order | None] = lambda _pod: None
    order: Order | None = None
    """Of the pod that this is about."""

    def about(self, pod: JsonObject) -> "Judge":
        return replace(self, order=self.order_of(pod))

    def first(self, fitting: Sequence[Scored], views: Iterable[NodeView], count: int) -> list[Scored]:
        """The most wanted, as filter would offer them."""
        if self.order is None:
            return best_of(fitting, count)
        by_name = {view.name: view for view in views}
        free = [
            sum(card.free_share_milli for card in by_name[scored.name].gpus) / MILLI_PER_GPU
            for scored in fitting
        ]
        nodes = Fitting(
            [scored.name for scored in fitting],
            np.array(free, dtype=np.float64),
            np.array([scored.topology for scored in fitting]),
            np.array([scored.resource for scored in fitting]),
        )
        wanted = dict(zip(nodes.names, self.order(nodes).tolist(), strict=True))
        return sorted(fitting, key=lambda one: (-wanted[one.name], -one.total, one.name))[:count]

    def of(self, request: PodRequest) -> Evaluation:
        """Fit and score of this request on any node, as of now."""
        evaluation = self.evaluator.of(request)

        def judged(view: NodeView) -> Outcome:
            found = evaluation(view)
            return found if isinstance(found, Refusal) else host_refusal(request, view) or found

        return judged

    def fits(self, request: PodRequest, view: NodeView) -> bool:
        """The same without a score, which takes most of the time."""
        return not isinstance(fit(request, view), Refusal) and host_refusal(request, view) is None

    def offer(self, request: PodRequest, view: NodeView, scored: Scored) -> Offer | None:
        """What a bind would give there; None if it would give nothing after all."""
        devices = choose_devices(request, view, self.prices())
        if isinstance(devices, Refusal):
            return None
        return Offer(view.name, devices, scored.total, scored.topology, scored.resource, scored.balance)
