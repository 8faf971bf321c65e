"""What the contracts say about a method: its names for metrics, and whether a retry is harmless."""

from dataclasses import dataclass
from functools import lru_cache

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

READS = MethodOptions.NO_SIDE_EFFECTS
_HARMLESS = (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """One RPC. Service and method are metric labels, so they come from descriptors, never from the wire.

    `reads`: its contract says that it has no side effects.
    """

    service: str
    method: str
    retryable: bool
    reads: bool = False


UNKNOWN_METHOD = MethodFacts("unknown", "unknown", retryable=False)


def method_path(service: ServiceDescriptor, method: str) -> str:
    return f"/{service.full_name}/{method}"


def facts_of(method: MethodDescriptor) -> MethodFacts:
    level = method.GetOptions().idempotency_level
    return MethodFacts(
        service=method.containing_service.full_name,
        method=method.name,
        retryable=level in _HARMLESS,
        reads=level == READS,
    )


@lru_cache(maxsize=1024)
def describe_method(path: str) -> MethodFacts:
    """Facts of `/package.Service/Method`, from the generated code that this process has imported."""
    service, _, method = path.removeprefix("/").partition("/")
    try:
        return facts_of(descriptor_pool.Default().FindMethodByName(f"{service}.{method}"))
    except KeyError:
        return UNKNOWN_METHOD
