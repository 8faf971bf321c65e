"""A machine that the simulated cloud launches, from its node's registration to its end."""

from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.kube.client import PodBinding
from gpuloom.kube.resources import NODES
from gpuloom.model.node import NodeMode
from gpuloom.sim.cloud.machines import MachineRoom
from gpuloom.sim.cloud.model import CapacityType, OfferingKey
from gpuloom.sim.cloud.offerings import default_offerings
from gpuloom.sim.cloud.server import CloudServer
from gpuloom.sim.cloud.state import CloudSettings, CloudState, LaunchRequest
from gpuloom.sim.controllers.loop import ControllerLoop
from gpuloom.sim.machines.audit import audit
from tests.unit.sim.test_cluster_run import FastClock, a_cluster, background, eventually, kubelet


async def test_a_machine_that_comes_later_runs_pods_and_takes_its_node_and_pods_with_it() -> None:
    clock, offering = FastClock(), OfferingKey("p5.48xlarge", "zone-a", CapacityType.SPOT)
    cloud = CloudState(default_offerings(load_catalog()), CloudSettings(boot_delay_s=(10.0, 20.0)))
    async with a_cluster(scheduler=False) as cluster, kubelet(cluster):
        server = CloudServer(cloud, clock, MachineRoom(cluster.directory, load_catalog()))
        controllers = ControllerLoop(cluster.client, clock)
        async with server, background(server.run()), background(controllers.run()):
            launched = cloud.launch(LaunchRequest(offering, mode=NodeMode.NVIDIA), clock.now().timestamp())

            async def node() -> Any:
                nodes = (await cluster.client.list(NODES)).items
                return next((one for one in nodes if one["metadata"]["name"] == launched.node), None)

            await eventually(node, "the instance's node registers")
            registered = await node()
            await cluster.create("train", {"nvidia.com/gpu": "2"})
            await cluster.client.bind(PodBinding("team-a", "train", launched.node))
            await cluster.reaches("train", "Running")
            cloud.terminate(launched.instance_id, clock.now().timestamp())

            async def is_gone() -> bool:
                return await node() is None

            await eventually(is_gone, "the node goes with its machine")
            await cluster.reaches("train", "gone")
            report = audit(cluster.directory)

    assert registered["spec"]["providerID"] == launched.provider_id
    assert registered["metadata"]["labels"]["gpuloom.dev/capacity-type"] == "spot"
    assert (report.clean, report.starts, report.ends) == (True, 1, 1)
