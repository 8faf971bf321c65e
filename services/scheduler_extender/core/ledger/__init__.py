"""Who owns which device, on every node. Open `ledger.py` first."""
