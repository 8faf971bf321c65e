"""`make bench-optimizer`: class, need and hint against simple rivals, on workloads held back and by time."""

import asyncio

from tests.bench.optimizer.classes import measure_classes
from tests.bench.optimizer.hints import measure_latency, measure_placement
from tests.bench.optimizer.memory import measure_memory
from tests.bench.optimizer.needs import measure_needs


def main() -> None:
    for title, lines in (
        ("class: macro-F1", measure_classes()),
        ("need: peak memory", measure_needs()),
        ("hint: effect in a simulated cluster", measure_placement()),
        ("hint: time to answer", asyncio.run(measure_latency())),
        ("memory", measure_memory()),
    ):
        print(f"\n{title}")  # noqa: T201 - a bench prints
        for line in lines:
            print(f"  {line}")  # noqa: T201


if __name__ == "__main__":
    main()
