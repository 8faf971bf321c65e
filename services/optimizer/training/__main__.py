"""`python -m services.optimizer.training --seed 1`: the cluster's labelled runs in, a model as JSON out."""

import argparse
import sys

import orjson

from services.optimizer.core.model import forest_to_json
from services.optimizer.training.fit import fit, generated_samples, with_own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    own = orjson.loads(sys.stdin.buffer.read() or b"[]")
    forest, _ = fit(with_own(generated_samples(seed), own), seed)
    sys.stdout.buffer.write(forest_to_json(forest))


if __name__ == "__main__":
    main()
