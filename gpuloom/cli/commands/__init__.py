"""Commands that are one module each, by name. None imports another."""
