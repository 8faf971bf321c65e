"""How services talk: servers, channels, who may call what, deadlines and errors. Knows no service."""
