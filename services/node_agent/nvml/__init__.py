"""The node's GPUs through NVIDIA's management library."""
