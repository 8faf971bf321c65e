"""What is to be done next, and what is remembered of it. Pure."""
