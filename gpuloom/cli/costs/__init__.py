"""What GPU work costs: `gpuloom cost`, and `gpuloom report` (its data, then its pages)."""
