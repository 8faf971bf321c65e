"""Which machines to buy for the pods that wait: what can be rented, what fits, the cheapest mix, the bill.

Open `plan.py` first, then `table.py` for what it chooses from and `simulation.py` for what it tries it on.
"""
