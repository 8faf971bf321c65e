"""How the agent reaches its machine, its kubelet and Kubernetes."""
