"""Kubernetes, Prometheus, and whoever asks for metrics."""
