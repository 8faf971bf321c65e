"""A simulated cloud: instances that are launched, interrupted and terminated, and what can go wrong."""
