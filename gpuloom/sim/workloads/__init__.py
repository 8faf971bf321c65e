"""What users do in a simulated cluster: pods that come and go, declared workloads, services with load.

Open `player.py` first: it plays the pods of `plan.py`, the GPUWorkloads of `declared.py` and the Deployment
of `wasteful.py`. `inference.py` is a process of its own. All of it is a client of the Kubernetes API.
"""
