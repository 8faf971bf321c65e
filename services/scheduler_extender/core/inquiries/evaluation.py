"""How explain and what-if judge a node: by the functions of filter and bind, and by CPU and memory too.

kube-scheduler looks at CPU and memory before it asks us, so filter need not; whoever asks without
kube-scheduler in front needs both.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.model.explanation import Offer
from gpuloom.model.request import PodRequest
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal, fit, host_refusal
from gpuloom.placement.potential import Prices, neutral_prices
from gpuloom.placement.score import Scored
from services.scheduler_extender.core.verbs.evaluator import Evaluation, Evaluator, Outcome


@dataclass(frozen=True, slots=True)
class Judge:
    """`outcomes` are those of filter, `prices` those of bind."""

    evaluator: Evaluator
    prices: Callable[[], Prices] = neutral_prices

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
