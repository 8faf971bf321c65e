"""What each policy does with its nodes now: add, give back, replace, or wait, and what its status says of it.

Open `scale_up.py` first, then `scale_down.py`.
"""
