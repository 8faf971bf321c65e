"""Taking, renewing, releasing and ending holds: `holding.py`. What may be taken: `core/ledger/holds.py`."""
