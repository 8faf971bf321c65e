"""What the clouds' metadata services answer, as notices. Pure."""
