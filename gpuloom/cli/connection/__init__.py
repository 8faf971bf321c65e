"""How a command reaches what it asks: a run's services or a cluster's, and a Kubernetes API.

Open `endpoints.py` first: it finds a service's address and certificates. `compose.py` and `forwarding.py`
supply these for `--compose` and `--kube`; `kube.py` finds a Kubernetes API.
"""
