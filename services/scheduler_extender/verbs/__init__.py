"""kube-scheduler's four verbs. Open `verbs.py` first; `https.py` is the port, `binding.py` the bind."""
