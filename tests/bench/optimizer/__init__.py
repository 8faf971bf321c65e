"""How good the optimizer's judgements are on workloads that they were not made from, and what they cost."""
