"""Cuts GPUs into MIG slices as pods ask for them, safely."""
