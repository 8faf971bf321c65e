"""Nodes and their GPUs as they are now: `gpuloom status`, `gpuloom top` and `gpuloom topology`.

Each command asks in the module of its name; the others make rows, documents and pictures of the answer.
"""
