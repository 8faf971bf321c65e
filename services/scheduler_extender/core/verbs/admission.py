"""What is decided about a pod before any node is looked at. Pure.

Filter asks here, and so do explain and what-if, so that they cannot disagree.
"""

from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.request import PodRequest
from gpuloom.placement.fit import Refusal
from services.scheduler_extender.core.ledger.claims import ObservedPod
from services.scheduler_extender.core.objects.pods import allocation_text
from services.scheduler_extender.core.verbs import quarantine

FOREIGN_ALLOCATION = "the pod carries an allocation that GPULoom did not make"


def admit(
    pod: JsonObject, *, held: bool, observed: ObservedPod | None = None, over_budget: str = ""
) -> PodRequest | Refusal | None:
    """What the pod asks for; a refusal if no node may have it; None if it asks for nothing that we manage.

    `observed` is the same pod at the same version, if the ledger has it: then it is not read again.
    `over_budget`: why a budget stops it; empty if none does.
    """
    try:
        request = pod_request(pod) if observed is None or observed.problem else observed.request
    except InvalidRequestError as error:
        return Refusal(str(error), resolvable=False)
    if request is None:
        return None
    if allocation_text(pod) is not None:
        return Refusal(FOREIGN_ALLOCATION, resolvable=False)
    if over_budget:
        return Refusal(over_budget, resolvable=True)
    return Refusal(quarantine.REASON, resolvable=True) if held else request
