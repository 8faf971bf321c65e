"""Kubernetes over raw JSON: client, informer, leader election, events, and parsing of its text forms."""
