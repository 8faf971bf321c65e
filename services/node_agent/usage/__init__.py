"""Usage windows: what each pod used of each device, kept on disk until everybody has read it."""
