"""What will be needed soon, from what history kept. Open `forecast.py` first."""
