"""The simulated cloud over HTTP: its API, faults on demand, and each instance's metadata service.

GET  /offerings  /instances  /groups             POST /instances (launch)  /stock  /faults
DELETE /instances/ID (terminate)                 POST /instances/ID/interrupt
PUT  /groups/NAME                                /metadata/NODE/latest/…: as EC2's, for spot notices
"""

from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.parse import format_time
from gpuloom.runtime.clock import Clock
from gpuloom.sim.cloud import codec
from gpuloom.sim.cloud.faults import AnswerLostError, CloudFaults
from gpuloom.sim.cloud.machines import MachineRoom
from gpuloom.sim.cloud.model import (
    CloudError,
    InstanceState,
    NoCapacityError,
    QuotaError,
    ThrottledError,
)
from gpuloom.sim.cloud.state import CloudState

STEP_S = 1.0
_TOKEN = "simulated"  # noqa: S105 (protects nothing)
_CODES: tuple[tuple[type[GpuloomError], int], ...] = (
    (ThrottledError, 429),
    (NoCapacityError, 409),
    (QuotaError, 409),
    (ConflictError, 409),
    (NotFoundError, 404),
    (InvalidRequestError, 400),
)


class CloudServer:
    """Use as an async context manager, and `run` beside it. `machines` None: instances have no machines."""

    def __init__(
        self,
        state: CloudState,
        clock: Clock,
        machines: MachineRoom | None = None,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.state = state
        self.faults = CloudFaults()
        self._clock = clock
        self._machines = machines
        self._port = port
        self._host = host
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def run(self) -> None:
        """Let time pass, until cancelled."""
        while True:
            self.step()
            await self._clock.sleep(STEP_S)

    def step(self) -> None:
        self.state.advance(self._now_s())
        if self._machines is not None:
            self._machines.follow(self.state.instances(), self.state.offerings())

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(
            [
                web.get("/offerings", self._listing(self.state.offerings, codec.offering_to_json)),
                web.get("/instances", self._listing(self.state.instances, codec.instance_to_json)),
                web.get("/groups", self._listing(self.state.groups, codec.group_to_json)),
                web.post("/instances", self._changing(self._launch)),
                web.delete("/instances/{id}", self._changing(self._terminate)),
                web.post("/instances/{id}/interrupt", self._interrupt),
                web.put("/groups/{name}", self._changing(self._put_group)),
                web.post("/stock", self._set_stock),
                web.post("/faults", self._set_faults),
                web.put("/metadata/{node}/latest/api/token", self._token),
                web.get("/metadata/{node}/latest/meta-data/spot/instance-action", self._instance_action),
                web.get("/healthz", self._healthy),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _listing(self, read: Callable[[], tuple[Any, ...]], encode: Callable[[Any], Any]) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                self.state.count_call(self._now_s())
            except GpuloomError as error:
                return _refusal(error)
            self.state.advance(self._now_s())
            return _json([encode(one) for one in read()])

        return handle

    def _changing(self, act: Callable[[web.Request, Any], Any]) -> Any:
        """A call that changes something: counted, and struck by faults before and after."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                body = orjson.loads(await request.read() or b"null")
                self.state.count_call(self._now_s())
                self.faults.before_acting()
                answer = act(request, body)
                self.faults.after_acting()
            except orjson.JSONDecodeError as error:
                return _refusal(InvalidRequestError(f"the body is not JSON: {error}"))
            except GpuloomError as error:
                return _refusal(error)
            except AnswerLostError:
                if request.transport is not None:
                    request.transport.close()
                return web.Response(status=500)
            return _json(answer)

        return handle

    def _launch(self, request: web.Request, body: Any) -> Any:
        return codec.instance_to_json(self.state.launch(codec.launch_from_json(body), self._now_s()))

    def _terminate(self, request: web.Request, body: Any) -> Any:
        return codec.instance_to_json(self.state.terminate(request.match_info["id"], self._now_s()))

    def _put_group(self, request: web.Request, body: Any) -> Any:
        group = codec.group_from_json(body)
        if group.name != request.match_info["name"]:
            raise InvalidRequestError(f"the group is {group.name}, not {request.match_info['name']}")
        return codec.group_to_json(self.state.put_group(group))

    async def _interrupt(self, request: web.Request) -> web.StreamResponse:
        try:
            return _json(
                codec.instance_to_json(self.state.interrupt(request.match_info["id"], self._now_s()))
            )
        except GpuloomError as error:
            return _refusal(error)

    async def _set_stock(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        try:
            self.state.set_stock(codec.offering_key(body), body.get("stock"))
        except GpuloomError as error:
            return _refusal(error)
        return _json({})

    async def _set_faults(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        try:
            if "failNext" in body:
                self.faults.fail_next(body["failNext"], int(body.get("times", 1)))
        except KeyError as error:
            return _refusal(InvalidRequestError(f"no error has the code {error}"))
        if "loseNextAnswers" in body:
            self.faults.lose_next_answers(int(body["loseNextAnswers"]))
        return _json({})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=_TOKEN)

    async def _instance_action(self, request: web.Request) -> web.StreamResponse:
        """404 while nothing is planned, as EC2 answers."""
        for instance in self.state.instances():
            is_live = instance.state is not InstanceState.TERMINATED
            if instance.node == request.match_info["node"] and is_live and instance.ends_at_s is not None:
                ends = format_time(datetime.fromtimestamp(instance.ends_at_s, UTC))
                return _json({"action": "terminate", "time": ends})
        return web.Response(status=404)

    async def _healthy(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def _refusal(error: GpuloomError) -> web.Response:
    status = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
    code = error.code if isinstance(error, CloudError) else "InvalidParameter"
    return _json({"error": {"code": code, "message": str(error)}}, status)


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
