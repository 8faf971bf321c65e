"""Typed clients of the services: model in, model out, deadlines set, streams followed through restarts."""
