"""Simulated kubelets: one process hosts any number of machines."""
