"""How the node's GPUs are cut and shared, and changes of that which survive a crash."""
