"""Whether a process of the simulated cluster can do its work, asked from outside."""

import aiohttp
import orjson

from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.child_process import Probe

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
