"""How facts of Kubernetes and usage windows of agents come into the store."""
