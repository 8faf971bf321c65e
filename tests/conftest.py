"""Settings of the whole test run."""

import os

from hypothesis import settings

# gRPC's core writes lines of its own to standard error when a peer goes away, which tests make happen.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Property tests look for new examples on a developer's machine; CI repeats the same ones, so that a red run
# is due to the change and can be repeated.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
