"""Where replicas of a pod would go: placed one after the other on a copy of the nodes' views. Pure.

Each replica sees what the ones before it have taken. All ask for the same, and how good a node is depends on
that node alone, so only the node that was just used is judged anew. What capacity is worth to others is taken
as it is now.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.explanation import Forecast, Offer
from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from gpuloom.placement.score import Scored
from services.scheduler_extender.explain import Steps, judged
from services.scheduler_extender.judge import Judge
from services.scheduler_extender.wording import described

MAX_REPLICAS = 1000

_Entry = tuple[float, str, Scored]


def forecast(request: PodRequest, views: Sequence[NodeView], replicas: int, judge: Judge) -> Steps[Forecast]:
    scratch = {view.name: view for view in views}
    waiting: list[_Entry] = []
    evaluation = judge.of(request)
    for view in views:
        outcome = evaluation(view)
        if isinstance(outcome, Scored):
            waiting.append(_entry(outcome))
        yield
    heapify(waiting)
    placed: list[Offer] = []
    while waiting and len(placed) < replicas:
        _, name, scored = heappop(waiting)
        offer = judge.offer(request, scratch[name], scored)
        if offer is None:
            continue
        placed.append(offer)
        scratch[name] = with_taken(scratch[name], request, offer.devices)
        outcome = evaluation(scratch[name])
        if isinstance(outcome, Scored):
            heappush(waiting, _entry(outcome))
        yield
    judgement = None
    if len(placed) < replicas:
        judgement = yield from judged(request, tuple(scratch.values()), judge)
    return Forecast(replicas, described(request), "", tuple(placed), judgement)


def with_taken(view: NodeView, request: PodRequest, devices: Sequence[AllocatedDevice]) -> NodeView:
    """The node after a pod got these devices: what the ledger would show of it."""
    given: defaultdict[str, list[AllocatedDevice]] = defaultdict(list)
    for item in devices:
        given[item.device.gpu_uuid].append(item)
    gpus = tuple(_card_after(card, given.get(card.gpu.uuid, ())) for card in view.gpus)
    return replace(view, gpus=gpus, host=None if view.host is None else _host_after(view.host, request))


def _card_after(card: GpuView, devices: Sequence[AllocatedDevice]) -> GpuView:
    slices = {item.device.mig for item in devices if item.device.mig is not None}
    cards = [item for item in devices if item.device.mig is None]
    return replace(
        card,
        free_milli=max(0, card.free_milli - sum(item.milli for item in cards)),
        free_memory_mib=max(0, card.free_memory_mib - sum(item.memory_mib for item in cards)),
        free_mig=tuple(instance for instance in card.free_mig if instance.placement not in slices),
    )


def _host_after(host: HostCapacity, request: PodRequest) -> HostCapacity:
    return replace(
        host,
        cpu_free_milli=max(0, host.cpu_free_milli - request.cpu_milli),
        memory_free_bytes=max(0, host.memory_free_bytes - request.memory_bytes),
    )


def _entry(scored: Scored) -> _Entry:
    """Smallest first is best first, equals by name, as `in_order` has it."""
    return -scored.total, scored.name, scored
