"""Settings of the whole test run."""

import os

from hypothesis import HealthCheck, settings

from tests.cluster.rights import _note_the_test
from tests.effort import examples

__all__ = ["_note_the_test"]

# gRPC's core writes lines of its own to standard error when a peer goes away, which tests make happen.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Property tests look for new examples on a developer's machine; CI repeats the same ones, so that a red run
# is due to the change and can be repeated. No example has a time limit: a busy machine is no counterexample.
settings.register_profile(
    "local", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "local"))
