"""A typed client of the simulated cloud. A call whose answer is lost raises InternalCloudError: try again."""

from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.cloud import codec
from gpuloom.sim.cloud.model import ERRORS, Instance, InstanceGroup, InternalCloudError, Offering
from gpuloom.sim.cloud.state import LaunchRequest

DEFAULT_TIMEOUT_S = 10.0


class CloudClient:
    """Use as an async context manager."""

    def __init__(self, url: str, clock: Clock, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._clock = clock
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def offerings(self) -> tuple[Offering, ...]:
        return tuple(codec.offering_from_json(one) for one in await self._call("GET", "/offerings"))

    async def instances(self) -> tuple[Instance, ...]:
        return tuple(codec.instance_from_json(one) for one in await self._call("GET", "/instances"))

    async def groups(self) -> tuple[InstanceGroup, ...]:
        return tuple(codec.group_from_json(one) for one in await self._call("GET", "/groups"))

    async def launch(self, request: LaunchRequest) -> Instance:
        """Raise NoCapacityError, QuotaError, ThrottledError, TokenReusedError or InternalCloudError."""
        return codec.instance_from_json(await self._call("POST", "/instances", codec.launch_to_json(request)))

    async def terminate(self, instance_id: str) -> Instance:
        return codec.instance_from_json(await self._call("DELETE", f"/instances/{instance_id}"))

    async def put_group(self, group: InstanceGroup) -> InstanceGroup:
        path = f"/groups/{group.name}"
        return codec.group_from_json(await self._call("PUT", path, codec.group_to_json(group)))

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        if self._session is None:
            raise RuntimeError("the client is not open")
        data = None if body is None else orjson.dumps(body)
        try:
            async with (
                deadline(self._clock, self._timeout_s),
                self._session.request(method, self._url + path, data=data) as response,
            ):
                answer = orjson.loads(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
            raise InternalCloudError(f"{method} {path} has no answer: {error!r}") from None
        if response.status == 200:
            return answer
        raise _error(response.status, answer["error"])


def _error(status: int, error: Any) -> Exception:
    kind = ERRORS.get(error["code"])
    if kind is not None:
        return kind(error["message"])
    return NotFoundError(error["message"]) if status == 404 else InvalidRequestError(error["message"])
