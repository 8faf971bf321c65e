"""The gpuloom command."""
