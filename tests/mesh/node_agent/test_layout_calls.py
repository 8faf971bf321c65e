"""Layouts of a node, listed and changed over gRPC."""

from pathlib import Path

import pytest

from gpuloom.clients.layouts import change_layout, list_layouts
from gpuloom.errors import ConflictError, InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.model.layout import ChangeState, LayoutRequest
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode
from tests.mesh.node_agent.builders import a_mesh
from tests.mesh.node_agent.test_agent import first, states_at
from tests.mesh.node_agent.test_machine_calls import ready
from tests.mesh.waiting import PATIENCE_S
from tests.unit.sim.builders import hosted, whole

SMALL = MigPlacement(6, "1g.5gb")


async def test_a_slice_that_the_controller_asks_for_appears_in_the_state(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        uuid, busy = (gpu.uuid for gpu in machine.hardware.gpus[:2])
        machine.write_hosted([hosted("train", whole(busy))])
        agent = await mesh.start_agent("n1")
        await ready(agent)
        controller = await mesh.channel(agent, "node_agent", "mig_controller")
        async with states_at(mesh, agent.port) as states:
            await first(states, lambda state: not state.holders_unknown_reason)
            change = await change_layout(
                controller, LayoutRequest("c1", uuid, True, (), (SMALL,)), PATIENCE_S
            )
            state = await first(states, lambda state: bool(state.gpus and state.gpus[0].mig_instances))
            with pytest.raises(ConflictError, match="only while nobody uses the GPU"):
                await change_layout(controller, LayoutRequest("c2", busy, True), PATIENCE_S)
        listed = await list_layouts(await mesh.channel(agent, "node_agent", "cli"), PATIENCE_S)

    assert change.state is ChangeState.DONE
    assert [instance.placement for instance in state.gpus[0].mig_instances] == [SMALL]
    assert listed.gpus[0].usable == {SMALL}
    assert [change.request.id for change in listed.changes] == ["c1"]


async def test_only_the_controller_changes_layouts_and_only_on_nodes_of_ours(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        uuid = mesh.add_machine("n1", NodeMode.NVIDIA).hardware.gpus[0].uuid
        agent = await mesh.start_agent("n1")
        await ready(agent)
        controller = await mesh.channel(agent, "node_agent", "mig_controller")
        request = LayoutRequest("c1", uuid, True)
        for caller in ("cli", "discovery"):
            with pytest.raises(NotAllowedError):
                await change_layout(await mesh.channel(agent, "node_agent", caller), request, PATIENCE_S)
        with pytest.raises(ConflictError, match="mode nvidia"):
            await change_layout(controller, request, PATIENCE_S)


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        agent = await mesh.start_agent("n1")
        await ready(agent)
        controller = await mesh.channel(agent, "node_agent", "mig_controller")

        with pytest.raises(NotFoundError, match="no GPU of this node"):
            await change_layout(controller, LayoutRequest("c1", "GPU-other", True), PATIENCE_S)
        with pytest.raises(InvalidRequestError, match="letters, digits"):
            await change_layout(controller, LayoutRequest("c 1", "GPU-other", True), PATIENCE_S)
