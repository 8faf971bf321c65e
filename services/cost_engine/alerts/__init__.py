"""How people hear of a budget: events, Alertmanager, webhooks, mail."""
