"""What is done in a cluster before services run: certificates into Secrets, definitions of custom resources.

    python -m gpuloom.setup certificates --authority NAMESPACE/NAME --secret discovery=NAMESPACE/NAME …
    python -m gpuloom.setup definitions

Open `certificates.py` first, which decides; `cluster.py` reads and writes.
"""
