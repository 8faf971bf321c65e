"""All nodes at once, from arrays: the results of `fit` and `score`. Open `fleet.py` first."""
