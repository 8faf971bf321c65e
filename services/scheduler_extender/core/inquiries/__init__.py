"""Why a pod does not fit, what would help, and where replicas would go. Open `explain.py` first."""
