"""What the extender knows between calls, fed by informers and discovery; `cluster.py` puts it together."""
