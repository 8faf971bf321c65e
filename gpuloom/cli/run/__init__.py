"""`gpuloom run`: the whole mesh on this machine, from its start to its summary.

Open `command.py`, then `session.py`. `observation.py` and `tally.py` follow what the mesh does; `displays.py`
shows it, on a screen (`screen.py`, `node_bars.py`, `bars.py`) or as lines; `summary.py` judges how it ended.
"""
