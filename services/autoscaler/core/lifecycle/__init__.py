"""A node's life, from the claim to the end of its machine: its states, what clouds show, how it is emptied.

Open `claims.py` first, then `sweep.py`.
"""
