"""Kubernetes objects as the extender reads them. Open `pods.py` first."""
