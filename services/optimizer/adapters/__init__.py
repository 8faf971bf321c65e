"""How the optimizer reaches Kubernetes, its database, prices and the process that trains."""
