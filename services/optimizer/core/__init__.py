"""The decisions; pure."""
