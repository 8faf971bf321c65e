"""Nodes as placement sees them: what the owners leave of them. Open `views.py` first."""
