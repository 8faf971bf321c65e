"""Buys, drains and returns GPU nodes."""
