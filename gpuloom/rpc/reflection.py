"""gRPC's reflection service, for people with generic tools. Imported only where it is switched on."""

from collections.abc import Sequence

from grpc import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


def enable(server: aio.Server, services: Sequence[str]) -> None:
    reflection.enable_server_reflection([*services, SERVICE.full_name], server)
