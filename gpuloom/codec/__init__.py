"""Messages in, model out, and back. The only place where a message is validated."""
