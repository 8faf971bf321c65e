"""The decision core: which node fits, which devices, how good. Values in, values out."""
