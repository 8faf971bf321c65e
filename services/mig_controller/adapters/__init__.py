"""Kubernetes, the node agents and the extender, as the controller needs them."""
