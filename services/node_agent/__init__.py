"""The truth about one node's GPUs: what there is, how it is linked, how it fares, and who holds it."""
