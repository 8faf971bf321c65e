"""What is cut where, and why. Pure."""
