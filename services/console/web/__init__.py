"""The HTTPS port: who may look, pages, state, and its changes."""
