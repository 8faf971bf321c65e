"""Spot notices: what the cloud says about the end of this machine."""
