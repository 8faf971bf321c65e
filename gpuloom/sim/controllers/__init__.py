"""Workload controllers of the simulated cluster: Jobs, Deployments, ReplicaSets, StatefulSets, lost pods."""
