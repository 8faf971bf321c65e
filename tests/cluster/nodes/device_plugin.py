"""NVIDIA's own device plugin on a real node, unmodified, on a stand-in of its driver's library.

It runs inside the node, registers with the node's kubelet, and gives devices out by an environment variable,
as on a machine with cards; nothing of ours is in its way.
"""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import NODES
from gpuloom.runtime.clock import Clock, deadline
from tests.cluster.assets.build import DEVICE_PLUGIN
from tests.cluster.nodes.real_node import RealNode

OFFER_TIMEOUT_S = 30.0

_POLL_S = 0.1
_FIRST_INSTANCE_MINOR = 3
_FLAGS = (
    "--device-discovery-strategy=nvml",
    "--device-list-strategy=envvar",
    "--device-id-strategy=uuid",
    # Whole cards as nvidia.com/gpu, slices as nvidia.com/mig-…, side by side; without slices all are whole.
    "--mig-strategy=mixed",
)


async def start_device_plugin(node: RealNode, program: Path, driver: Mapping[str, str]) -> None:
    """`driver` is the environment in which the loader finds the library. Ready once it serves."""

    async def serves() -> bool:
        sockets = await asyncio.to_thread(lambda: list(node.paths.device_plugins.glob("nvidia-*.sock")))
        return bool(sockets)

    environment = {"NODE_NAME": node.name, **driver}
    await node.start_program(DEVICE_PLUGIN, (str(program), *_FLAGS), environment, serves)


async def wait_offered(client: KubeClient, node: str, resource: str, count: int, clock: Clock) -> None:
    """Until pods may have exactly that many. Raise AssertionError, with what it is, if it stays different."""
    offered = ""
    try:
        async with deadline(clock, OFFER_TIMEOUT_S):
            while offered != str(count):
                shown = await client.get(NODES, node)
                offered = shown["status"]["allocatable"].get(resource, "")
                await clock.sleep(0 if offered == str(count) else _POLL_S)
    except TimeoutError:
        raise AssertionError(f"{node} offers {offered or 'no'} {resource}, not {count}") from None


def write_mig_minors(node: RealNode, instances: Iterable[tuple[int, int]]) -> None:
    """What the kernel module tells of these slices, each a GPU's minor number and a GPU instance's id."""
    lines = ["config 1", "monitor 2"]
    for number, (gpu, instance) in enumerate(instances):
        minor = _FIRST_INSTANCE_MINOR + 2 * number
        place = f"gpu{gpu}/gi{instance}"
        lines += [f"{place}/access {minor}", f"{place}/ci0/access {minor + 1}"]
    minors = node.paths.driver / "nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True, exist_ok=True)
    minors.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
