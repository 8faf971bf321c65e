"""Whether a pod may run under its runtime handler on a node that delivers by NRI. Pure.

NVIDIA's runtime shows a container every GPU that its environment names, and an image may name them all: no
allocation bounds it. So its handlers are refused here, except for pods that look after the GPUs themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.model.node import PodRef

NVIDIA_HANDLERS = ("nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental")
"""As NVIDIA's container toolkit names them in the runtime's configuration."""

SETTING_REFUSED = "GPULOOM_AGENT_RUNTIME_HANDLERS_REFUSED"
SETTING_ALLOWED = "GPULOOM_AGENT_RUNTIME_HANDLERS_ALLOWED"


@dataclass(frozen=True, slots=True)
class HandlerRules:
    """`allowed` are namespaces, or `namespace/service account`, whose pods may use the refused handlers."""

    refused: frozenset[str] = frozenset(NVIDIA_HANDLERS)
    allowed: frozenset[str] = frozenset()

    def refusal(self, handler: str, pod: PodRef, service_account: Callable[[], str]) -> str:
        """Why the pod's containers must not be created; empty if they may.

        `service_account` is asked only where it matters; an empty one is not known.
        """
        if handler not in self.refused or pod.namespace in self.allowed:
            return ""
        account = service_account() if any("/" in entry for entry in self.allowed) else ""
        if account and f"{pod.namespace}/{account}" in self.allowed:
            return ""
        return (
            f"runtime handler {handler} could show this pod every GPU of a node that gives out its GPUs "
            f"itself: leave out runtimeClassName, or let {SETTING_ALLOWED} of the node agent name "
            f"namespace {pod.namespace}"
        )
