"""The gpuloom command. Open `main.py` first: every subcommand, and how every one of them fails.

Subcommands are in rooms by what they are about: `run`, `nodes`, `scheduling`, `costs`, `doctor`, and
`commands` for those that are one module each. All reach a mesh by `connection` and answer by `output`.
"""
