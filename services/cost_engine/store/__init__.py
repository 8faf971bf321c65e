"""What the cost engine remembers, in SQLite or PostgreSQL."""
