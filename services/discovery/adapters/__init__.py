"""How discovery reaches the agents and Kubernetes."""
