"""Settings of the whole test run."""

import os

# gRPC's core writes lines of its own to standard error when a peer goes away, which tests make happen.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
