"""Stubs of what container runtimes speak with their plugins, generated from protos/gpuloom/nri; never edited."""
