"""What runs in a process of its own: the only part that imports scikit-learn."""
