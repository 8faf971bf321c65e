"""The loops that carry out what the core decided."""
