"""The hardware-free cluster: GPUs, kubelets, a Kubernetes API, a scheduler loop and a workload."""
