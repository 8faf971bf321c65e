"""Judges workloads by what they used: class, need, placement hint, waste, recommendation."""
