"""Which pods belong together, how far their gang is, and where a pod with a promise may go.

Open `membership.py` first, then `phases.py` and `guard.py`.
"""
