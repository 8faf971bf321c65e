"""What filter, prioritize and bind answer, and the JSON they are asked in. Open `filtering.py` first."""
