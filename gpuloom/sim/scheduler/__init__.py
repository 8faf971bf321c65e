"""A scheduler loop that behaves towards an extender as kube-scheduler does. Preemption is not simulated."""
