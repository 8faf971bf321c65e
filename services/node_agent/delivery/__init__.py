"""Gives a container exactly the devices of its pod's allocation, as a plugin of the container runtime."""
