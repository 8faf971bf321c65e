"""The simulated cluster whose services run elsewhere."""

from pathlib import Path

import orjson
import pytest

from gpuloom.errors import ConflictError
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.parsers import Address
from gpuloom.sim.mesh.plan import MeshOptions
from gpuloom.sim.mesh.run_directory import resume_run_directory
from gpuloom.sim.standalone import SimulatedCluster, Surroundings


def test_a_restart_goes_on_with_what_is_there_and_nobody_else_may_meanwhile(tmp_path: Path) -> None:
    certificates = tmp_path / "elsewhere"
    with resume_run_directory(tmp_path / "run", certificates) as first:
        (first.machines / "node-1").mkdir()
        with pytest.raises(ConflictError), resume_run_directory(tmp_path / "run", certificates):
            pass

    with resume_run_directory(tmp_path / "run", certificates) as second:
        assert [path.name for path in second.machines.iterdir()] == ["node-1"]
        assert second.certificates == certificates


def test_agents_have_a_port_each_and_those_that_listed_themselves_keep_theirs(tmp_path: Path) -> None:
    around = Surroundings(
        "simulation", 8001, 8002, Address("node-agent", 50100), "https://extender", tmp_path
    )
    cluster = SimulatedCluster(MeshOptions(), around, SystemClock())
    file = tmp_path / "agents.json"

    cluster._list_agents(file, ["b", "a"])
    listed = orjson.loads(file.read_bytes())
    file.write_bytes(orjson.dumps({**listed, "late": "node-agent:33333"}))
    cluster._list_agents(file, ["b", "a"])

    assert listed == {"a": "node-agent:50100", "b": "node-agent:50101"}
    assert orjson.loads(file.read_bytes()) == {**listed, "late": "node-agent:33333"}
