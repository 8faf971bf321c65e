"""A simulated Kubernetes API server over HTTP: storage, watches, bindings, evictions, admission webhooks.

It speaks JSON, not protobuf. Custom resources are served as soon as they are defined, and are pruned,
defaulted and validated by their schema (see `schema/`).

A request comes in by `http.py`, is read by `endpoints/`, shown to webhooks by `admission/` and carried out
by `verbs/` on what `storage/` keeps; `objects/` says what an object must look like. `server.py` puts the
parts together.
"""

from gpuloom.sim.kubeapi.server import SimKubeApi
from gpuloom.sim.kubeapi.verbs.store import Store

__all__ = ["SimKubeApi", "Store"]
