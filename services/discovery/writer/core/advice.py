"""What an Event about a node says: its reason, why GPUs are not given out, and what a person can do. Pure.

One message is about all findings of one cause on one node. Those who look for more find every finding in the
node's details, and how many there are in the metrics.
"""

from collections.abc import Collection, Mapping, Sequence

from services.discovery.core.findings import Cause, Finding
from services.discovery.core.trust import REASONS

ADVICE: Mapping[Cause, str] = {
    Cause.AGENT_NOT_HEARD: "Check that the node agent's pod runs on this node and that discovery reaches "
    "its port; pods that run here are left alone",
    Cause.AGENT_SILENT: "See the log of the node agent's pod on this node; pods that run here are left alone",
    Cause.NODE_UID_UNKNOWN: "See the log of the node agent's pod: it can't read its node from Kubernetes",
    Cause.NODE_REPLACED: "Restart the node agent's pod if this does not clear within a minute",
    Cause.MODE_UNKNOWN: "Set GPULOOM_AGENT_MODE to nvidia or gpuloom for the agent of this node",
    Cause.TWO_AUTHORITIES: "Let one give out the GPUs: take NVIDIA's device plugin off this node, or set "
    "GPULOOM_AGENT_MODE=nvidia for its agent",
    Cause.MODE_CHANGED: "Drain those pods, or set GPULOOM_AGENT_MODE back; the node opens when the last of "
    "them is gone",
    Cause.CLAIMED_GPU: "Let one give out the GPUs: delete the pods with those claims and take the DRA driver "
    "off this node, or take GPULoom's agent off it",
    Cause.HOLDERS_UNKNOWN: "See to what the node agent can't read on this node: the kubelet's PodResources, "
    "or the container runtime",
    Cause.UNREADABLE_ALLOCATION: "Delete that pod, and take gpuloom.dev/allocation out of its template: "
    "only the scheduler extender writes it",
    Cause.ALLOCATION_OF_ANOTHER_POD: "Delete that pod, and take gpuloom.dev/allocation out of its template: "
    "only the scheduler extender writes it",
    Cause.ALLOCATION_OF_ANOTHER_NODE: "Delete that pod: it was bound to another node than its devices are "
    "on, or to this one before it registered again, and its containers can't start anew",
    Cause.UNKNOWN_DEVICE: "See with nvidia-smi -L why the driver does not show the device; delete the pod "
    "that uses it if the device is gone",
    Cause.SECOND_OWNER: "Delete one of the pods; the GPU opens when one owner is left",
    Cause.FOREIGN_PROCESS: "End the process, or run it in a pod that asks for the GPU; nvidia-smi on the "
    "node shows it",
    Cause.HOLDER_WITHOUT_POD: "See with crictl ps on the node whether the pod's containers still run, and "
    "end them",
    Cause.HELD_WITHOUT_ALLOCATION: "Delete that pod, and let it ask for the GPU by its resources: an image "
    "must not take GPUs by itself",
    Cause.WRONG_COUNT: "Delete that pod, so that it starts anew; if this comes back, see the log of the "
    "device plugin",
}

_NAMED = 3
_MAX_DETAIL = 200


def event_reason(cause: Cause) -> str:
    """The cause as Kubernetes writes reasons: agent-silent is AgentSilent."""
    return "".join(part.capitalize() for part in cause.split("-"))


def event_message(cause: Cause, findings: Collection[Finding]) -> str:
    details = list(dict.fromkeys(finding.detail[:_MAX_DETAIL] for finding in findings if finding.detail))
    seen = f" ({_listed(details, '; ')})" if details else ""
    return f"{_what(findings)} not given out: {REASONS[cause]}{seen}. {ADVICE[cause]}."


def _what(findings: Collection[Finding]) -> str:
    gpus = sorted({finding.gpu_uuid for finding in findings})
    if "" in gpus:
        return "The GPUs of this node are"
    return f"{_listed(gpus, ', ')} {'is' if len(gpus) == 1 else 'are'}"


def _listed(texts: Sequence[str], separator: str) -> str:
    named = separator.join(texts[:_NAMED])
    return named if len(texts) <= _NAMED else f"{named} and {len(texts) - _NAMED} more"
