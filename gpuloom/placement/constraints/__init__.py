"""kube-scheduler's own filters, so that a planner refuses what it would refuse. Open `filters.py` first."""
