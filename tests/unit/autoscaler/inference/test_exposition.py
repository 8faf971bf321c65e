"""Gauges without Prometheus."""

from aiohttp import web
from aiohttp.test_utils import TestServer

from services.autoscaler.inference.adapters.exposition import ExpositionMeasures
from services.autoscaler.inference.core.measures import Question
from services.autoscaler.inference.core.queries import Pods


async def test_a_long_exposition_is_read_to_its_end() -> None:
    lines = [f'other{{pod="p-{n}",namespace="ns"}} {n}' for n in range(20_000)]
    text = "\n".join([*lines, 'waiting{pod="llm-0",namespace="ns"} 12', ""])

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server, ExpositionMeasures(str(server.make_url("/metrics"))) as measures:
        question = Question("", True, ("waiting",), Pods("ns", ("llm-0",), "llm"))
        answers = await measures.ask({"waiting": question})

    assert answers["waiting"].pods == {"llm-0": 12.0}
