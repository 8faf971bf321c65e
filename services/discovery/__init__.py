"""One read model of the cluster's devices, with trust made explicit, from the node agents' streams."""
