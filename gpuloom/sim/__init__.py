"""The hardware-free cluster: GPUs, kubelets, a Kubernetes API, a scheduler loop and a workload.

Open `embedded.py` first: a whole cluster with all services on this machine. `standalone.py` is one whose
services run elsewhere. `machines/` is the hardware, `mesh/` plans which processes run, `processes/` runs
them, `workloads/` gives them pods; `kubeapi/`, `kubelet/`, `scheduler/`, `controllers/` and `cloud/` stand in
for what is not ours.
"""
