"""Who pays what: prices, the usage ledger and budgets."""
