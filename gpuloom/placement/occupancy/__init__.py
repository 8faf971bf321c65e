"""What a node has left, given who owns what on it. Open `node_view.py` first."""
