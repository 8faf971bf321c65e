"""The web console: what the other services know, on one page. Read-only."""
