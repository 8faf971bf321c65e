"""Answers kube-scheduler: filter, prioritize, bind, preempt, on the one ledger of who has which device."""
