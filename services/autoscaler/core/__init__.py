"""What the autoscaler decides. Pure: values and the time in, values out.

Open `scaling/` first: it buys through `buying/` and keeps what `forecasting/` expects to be needed.
`lifecycle/` is what becomes of a claim.
"""
