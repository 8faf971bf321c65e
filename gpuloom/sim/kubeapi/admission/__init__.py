"""Admission webhooks: which are asked about a write, what they are told, and what their answers change."""
