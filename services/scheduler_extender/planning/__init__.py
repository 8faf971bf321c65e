"""The leader's loops that plan ahead: gangs, preemptions, reservations. Open `gangs.py` first."""
