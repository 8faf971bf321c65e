"""A new service is a contract, a folder and a row: everything else follows from the roster."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from gpuloom.cli.connection.endpoints import find_endpoint
from gpuloom.errors import NotAllowedError
from gpuloom.roster import ROSTER
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.metrics import new_registry
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.mesh.plan import MeshOptions
from tests.scaffold.writing import python_path, write_services

NAME = "greeter"
CLOCK = SystemClock()


async def greet(mesh: EmbeddedMesh, caller: str) -> str:
    pb: Any = importlib.import_module(f"scaffold.v1.{NAME}_pb2")
    stubs: Any = importlib.import_module(f"scaffold.v1.{NAME}_pb2_grpc")
    rpc = RpcEnvironment(tls_files(mesh.plan.directory.certificates, caller), new_registry("cli"), CLOCK)
    async with RpcChannel(rpc, mesh.plan.address(NAME), NAME) as channel:
        answer = await channel.stub(stubs.GreeterServiceStub).Greet(
            pb.GreetGreeterRequest(name=caller), timeout=5.0
        )
    return str(answer.greeting)


async def test_a_folder_and_a_row_make_a_service_of_the_mesh(
    run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster = write_services(tmp_path, [NAME])
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    async with open_mesh(MeshOptions(nodes=1), run_directory, CLOCK, roster) as mesh:
        await mesh.start()
        greeting = await greet(mesh, "cli")
        with pytest.raises(NotAllowedError, match="node_agent may not call"):
            await greet(mesh, "node_agent")
        monkeypatch.setattr("gpuloom.cli.connection.endpoints.ROSTER", roster)
        endpoint = find_endpoint(NAME, "", run_directory, {})

    assert greeting == "greeter greets cli"
    assert endpoint.address == mesh.plan.address(NAME)
    assert NAME not in {service.name for service in ROSTER}
