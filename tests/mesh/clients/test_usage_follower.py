"""From simulated cards to a consumer's windows: agent, spool, discovery, gRPC and the follower."""

from pathlib import Path

from services.node_agent.usage.core.records import Segment, header, read_segment, record
from tests.mesh.clients.usage_keeper import Keeper, following
from tests.mesh.node_agent.builders import a_mesh
from tests.mesh.waiting import until
from tests.unit.sim.builders import hosted, whole


async def test_every_window_arrives_once_through_restarts_of_both_ends(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        machine.write_hosted([hosted("train", whole(machine.hardware.gpus[0].uuid))])
        agent = await mesh.start_agent("n1")
        port = agent.port
        mesh.tell_agents(n1=port)
        discovery = await mesh.start_discovery()
        keeper = Keeper()
        keeper.refusals = 2
        async with following(mesh, discovery, keeper) as follower:
            await until(lambda: sum(map(len, keeper.windows.values())) >= 2)
            assert follower.progress[mesh.node_uid("n1")].live
            await agent.stop()
            agent = await mesh.start_agent("n1", port)
            (spool,) = keeper.windows
            stopped_at = len(keeper.windows[spool])
            await until(lambda: len(keeper.windows[spool]) >= stopped_at + 2)
        seen = len(keeper.windows[spool])

        async with following(mesh, discovery, keeper):
            await until(lambda: len(keeper.windows[spool]) >= seen + 2)

        # One spool through the restart, and no window of it twice or never.
        assert list(keeper.windows) == [spool]
        assert keeper.all_once()
        assert keeper.missed == 0
        first = keeper.windows[spool][1]
        usage = {each.pod.name: each for each in first.devices if each.pod is not None}["train"]
        assert first.node_uid == mesh.node_uid("n1")
        assert usage.held_ns == first.duration_ns
        assert 0.3 < usage.used_ns / usage.measured_ns < 0.7
        assert usage.memory_mean_bytes == 20480 * 1024 * 1024
        assert usage.energy_mj is not None
        free = [each for each in first.devices if each.pod is None]
        assert (len(free), sum(each.held_ns for each in free)) == (7, 0)


async def test_windows_that_left_the_spool_are_told_as_missed(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        machine.write_hosted([hosted("train", whole(machine.hardware.gpus[0].uuid))])
        agent = await mesh.start_agent("n1")
        port = agent.port
        mesh.tell_agents(n1=port)
        discovery = await mesh.start_discovery()
        keeper = Keeper()
        async with following(mesh, discovery, keeper):
            await until(lambda: keeper.windows)
        (spool,) = keeper.windows
        seen = len(keeper.windows[spool])
        await until(lambda: len(windows_of(machine.directory)) >= seen + 3)
        await agent.stop()
        forget_windows(machine.directory, keep_from=seen + 3)
        agent = await mesh.start_agent("n1", port)
        async with following(mesh, discovery, keeper):
            await until(lambda: len(keeper.windows[spool]) > seen)

        assert keeper.missed == 2
        assert keeper.windows[spool][seen].sequence == seen + 3


def windows_of(machine: Path) -> tuple[bytes, ...]:
    return segment_of(machine).windows


def segment_of(machine: Path) -> Segment:
    (path,) = machine.glob("usage/*/*.usage")
    segment = read_segment(path.read_bytes())
    assert segment is not None
    return segment


def forget_windows(machine: Path, keep_from: int) -> None:
    """What the spool looks like when it has dropped everything before this number."""
    segment = segment_of(machine)
    (path,) = machine.glob("usage/*/*.usage")
    path.unlink()
    kept = b"".join(record(window) for window in segment.windows[keep_from - 1 :])
    (path.parent / f"{keep_from:020d}.usage").write_bytes(header(segment.spool_id, keep_from) + kept)
