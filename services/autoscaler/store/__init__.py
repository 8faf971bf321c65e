"""What the autoscaler remembers for days. Open `history.py` first."""
