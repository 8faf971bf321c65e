"""What discovery writes to Kubernetes: on nodes, and Events about them. Only the elected replica does."""
