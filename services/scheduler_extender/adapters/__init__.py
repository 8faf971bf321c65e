"""How the extender reaches Kubernetes."""
