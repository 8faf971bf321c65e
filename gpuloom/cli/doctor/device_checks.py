"""Judges what discovery tells of nodes and GPUs: trust, health, delivery to containers. Pure."""

from collections.abc import Iterator

from gpuloom.cli.doctor.findings import Finding, failed, first_names, ok, skipped, warning
from gpuloom.cli.doctor.observed import Observed, Unread
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.snapshot import ClusterSnapshot


def trust(observed: Observed) -> Iterator[Finding]:
    if isinstance(observed.facts, Unread):
        yield skipped("trusted capacity", observed.facts.why)
        return
    nodes = observed.facts.nodes.values()
    untrusted = [facts for facts in nodes if not facts.trusted]
    for facts in sorted(untrusted, key=lambda facts: facts.state.node_name):
        reasons = "; ".join((*facts.untrusted_reasons, *facts.details))
        yield failed(
            "trusted capacity",
            f"{facts.state.node_name}: {reasons}",
            _untrusted_remedy(facts.untrusted_reasons),
        )
    if not untrusted:
        yield ok("trusted capacity", f"all {len(observed.facts.nodes)} nodes")
    yield from _gpu_health(observed.facts)


def delivery(observed: Observed) -> Iterator[Finding]:
    """Whether containers on `gpuloom` nodes can be given exactly their devices."""
    if isinstance(observed.facts, Unread):
        yield skipped("delivery", observed.facts.why)
        return
    own = [facts.state for facts in observed.facts.nodes.values() if facts.state.mode is NodeMode.GPULOOM]
    unable = {state.node_name for state in own if state.delivery is Delivery.NONE}
    weaker = {state.node_name for state in own if state.delivery is Delivery.ENV}
    if unable:
        yield failed(
            "delivery",
            f"no device can be delivered on {first_names(unable)}",
            "switch NRI on in the container runtime, and check /etc/cdi and the agent's log",
        )
    if weaker:
        yield warning(
            "delivery",
            f"by environment, not by NRI, on {first_names(weaker)}",
            "switch NRI on in the container runtime: an image can then see no more than its devices",
        )
    if own and not unable and not weaker:
        yield ok("delivery", f"by NRI on all {len(own)} nodes of mode gpuloom")


def _gpu_health(facts: ClusterSnapshot) -> Iterator[Finding]:
    for node in sorted(facts.nodes.values(), key=lambda node: node.state.node_name):
        for gpu in node.state.gpus:
            if gpu.health in (GpuHealth.UNHEALTHY, GpuHealth.LOST):
                text = f"{node.state.node_name} GPU {gpu.index} is {gpu.health}: {gpu.health_reason}"
                yield failed("GPU health", text, "drain the node, reset the GPU, or replace it")


def _untrusted_remedy(reasons: tuple[str, ...]) -> str:
    if any("agent" in reason for reason in reasons):
        return "look at the node agent's pod on that node, and at its log"
    return "gpuloom status, and docs/architecture.md on trust: it opens by itself once the cause is gone"
