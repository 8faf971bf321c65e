"""What makes a window, and how it is written; pure."""
