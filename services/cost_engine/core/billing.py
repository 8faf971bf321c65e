"""What a stretch of time costs, so that parts of it always add up to the whole.

A price runs by the absolute clock: the bill of a stretch is what the price has cost since 1970 at its end,
less the same at its beginning, each rounded down to the nano-dollar. So the bills of hours add up to the
bill of their day, however time is cut, and whole hours cost exactly their price.
"""

from services.cost_engine.core.intervals import HOUR_NS


def bill_nano_usd(nano_usd_per_hour: int, start_ns: int, end_ns: int) -> int:
    return nano_usd_per_hour * end_ns // HOUR_NS - nano_usd_per_hour * start_ns // HOUR_NS
