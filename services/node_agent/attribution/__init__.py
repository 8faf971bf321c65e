"""Whose a process is, and who thereby holds which device."""
