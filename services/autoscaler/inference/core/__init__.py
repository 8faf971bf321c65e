"""Decisions about replicas. Pure."""
