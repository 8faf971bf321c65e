import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from gpuloom.model.node import NodeMode
from gpuloom.runtime.clock import FakeClock, SystemClock, settle
from gpuloom.v1.discovery_pb2 import WatchClusterRequest
from tests.bench.calls import CallRecorder
from tests.bench.discovery import HEARTBEAT_S, NODES_PER_PART, FixedDiscovery
from tests.bench.do_nothing import DoNothing
from tests.bench.workload import node_facts, plan_machines

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def a_connection(extender: DoNothing) -> AsyncIterator[Streams]:
    server = await asyncio.start_server(extender.serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


async def call(streams: Streams, verb: str, body: object) -> object:
    reader, writer = streams
    sent = orjson.dumps(body)
    writer.write(f"POST /{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    return orjson.loads(await reader.readexactly(length))


async def test_one_connection_to_the_do_nothing_extender_serves_all_verbs(tmp_path: Path) -> None:
    recorder = CallRecorder(tmp_path / "calls.json")
    names = [f"n{index}" for index in range(20)]

    async with a_connection(DoNothing(8, None, recorder, SystemClock())) as streams:
        filtered = await call(streams, "filter", {"Pod": {}, "NodeNames": names})
        scores = await call(streams, "prioritize", {"Pod": {}, "NodeNames": names[:3]})
        victims = await call(streams, "preempt", {})

    assert filtered == {"NodeNames": names[:8], "FailedNodes": {}, "Error": ""}
    assert scores == [
        {"Host": "n0", "Score": 10},
        {"Host": "n1", "Score": 0},
        {"Host": "n2", "Score": 0},
    ]
    assert victims == {"NodeNameToMetaVictims": {}}


async def test_fixed_discovery_tells_all_nodes_once_and_then_only_that_it_lives() -> None:
    clock = FakeClock()
    machines = plan_machines(NODES_PER_PART + 1, (NodeMode.GPULOOM,))
    discovery = FixedDiscovery([node_facts(machine, machine.spec.node) for machine in machines], clock)

    stream = discovery.WatchCluster(WatchClusterRequest(), None)
    parts = [await anext(stream), await anext(stream)]
    beat = asyncio.ensure_future(anext(stream))
    await settle()
    await clock.advance(HEARTBEAT_S)

    assert [(len(part.full.nodes), part.full.more) for part in parts] == [(NODES_PER_PART, True), (1, False)]
    assert (await beat).WhichOneof("update") == "heartbeat"
