"""How a service runs: configuration, logs, time, metrics, health, and its life from start to drain."""
