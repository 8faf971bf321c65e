"""A simulated Kubernetes API server over HTTP: storage, watches, bindings, evictions, admission webhooks.

It speaks JSON, not protobuf. Custom resources are served as soon as they are defined, and are pruned,
defaulted and validated by their schema (see `schema/`).
"""

from gpuloom.sim.kubeapi.server import SimKubeApi
from gpuloom.sim.kubeapi.store import Store

__all__ = ["SimKubeApi", "Store"]
