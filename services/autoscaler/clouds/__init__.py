"""One narrow port for every cloud: observe, request, cancel, terminate."""
