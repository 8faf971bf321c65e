"""`python -m tests.bench.autoscaler DATA`: plans against a bound and rivals; forecasts."""

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with openb/, gpu_prices.csv and series/")
    parser.add_argument("--batches", type=int, default=20, help="batches of each size (default 20)")
    parser.add_argument("--restarts", type=int, default=0, help="attempts of a plan (default: by its size)")
    parser.add_argument("--moments", type=int, default=400, help="forecasts of each series (default 400)")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tests.bench.autoscaler import forecasting, scale_up  # noqa: PLC0415 - after the number of threads

    for line in scale_up.report(given.data, given.batches, given.restarts):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    for line in forecasting.report(given.data, given.moments):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
