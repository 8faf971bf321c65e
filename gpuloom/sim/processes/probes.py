"""Whether a process of the simulated cluster can do its work, asked from outside."""

import aiohttp
import orjson

from gpuloom.kube.objects import JsonObject
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.child_process import Probe

TIMEOUT_S = 2.0


def answers_ok(url: str, clock: Clock) -> Probe:
    """A GET of the URL is answered with 200."""

    async def probe() -> bool:
        return await _get(url, clock) is not None

    return probe


def nodes_registered(api_url: str, count: int, clock: Clock) -> Probe:
    """The Kubernetes API has that many nodes, which is how one sees that the kubelets are at work."""

    async def probe() -> bool:
        body = await _get(f"{api_url}/api/v1/nodes", clock)
        return body is not None and len(orjson.loads(body).get("items") or ()) >= count

    return probe


def gpus_offered(api_url: str, count: int, clock: Clock) -> Probe:
    """That many nodes of the Kubernetes API offer GPUs, which is how one sees that discovery has written."""

    async def probe() -> bool:
        body = await _get(f"{api_url}/api/v1/nodes", clock)
        nodes = [] if body is None else orjson.loads(body).get("items") or []
        return sum(map(_offers_gpus, nodes)) >= count

    return probe


def all_of(*probes: Probe) -> Probe:
    """Asked in their order, until one says no."""

    async def probe() -> bool:
        for each in probes:
            if not await each():
                return False
        return True

    return probe


def _offers_gpus(node: JsonObject) -> bool:
    offered = node.get("status", {}).get("allocatable", {})
    return any(name == RESOURCE_GPU_MILLI or name.startswith("nvidia.com/") for name in offered)


async def _get(url: str, clock: Clock) -> bytes | None:
    """The body of a good answer. A new connection each time: a kept one would say nothing of a restart."""
    try:
        async with (
            deadline(clock, TIMEOUT_S),
            aiohttp.ClientSession() as session,
            session.get(url) as answer,
        ):
            body = await answer.read()
            return body if answer.status == 200 else None
    except (aiohttp.ClientError, OSError):
        return None
