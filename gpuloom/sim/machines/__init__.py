"""Simulated GPU machines as directories on disk, and the audit of what ran on them.

Open `machine.py` first. `cluster.py` says which machines there are, `hardware.py` what one is made of,
`layouts.py` how its GPUs are cut, `load.py` and `energy.py` what they read like. `journal.py` records who
held which device; `audit.py` judges from that alone. Nothing here calls the Kubernetes API.
"""
