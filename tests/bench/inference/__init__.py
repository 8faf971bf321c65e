"""Replicas of an inference service under recorded arrivals: ours, HPAs, a queue scaler, foresight."""
