"""Many pods at once, and who must leave for them. Open `gang.py` first, then `preemption.py`."""
