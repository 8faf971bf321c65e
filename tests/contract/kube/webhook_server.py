"""A webhook over HTTPS that answers as a test tells it to, and remembers what it was asked."""

import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from gpuloom.kube.objects import JsonObject
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.processes.ports import HOST
from tests.cluster.certificates import Authority, Identity

Answer = Callable[[JsonObject], JsonObject]


def allow(request: JsonObject) -> JsonObject:
    return {"allowed": True}


def deny(request: JsonObject) -> JsonObject:
    status = {"code": 403, "message": f"{request['operation'].lower()} is not wanted"}
    return {"allowed": False, "status": status}


def patching(*operations: JsonObject) -> Answer:
    encoded = base64.b64encode(orjson.dumps(operations)).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


@dataclass
class WebhookServer:
    url: str
    authority: str
    """PEM, base64."""
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, JsonObject]] = field(default_factory=list)

    def webhook(self, path: str, answer: Answer, **settings: Any) -> JsonObject:
        """An entry of a configuration: for ConfigMaps of the tests' namespace."""
        self.answers[path] = answer
        rule = {
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["configmaps"],
        }
        return {
            "name": f"{path}.contract.gpuloom.dev",
            "clientConfig": {"url": f"{self.url}/{path}", "caBundle": self.authority},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "contract"}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
            **settings,
        }

    def asked_of(self, path: str, name: str) -> list[JsonObject]:
        return [one for where, one in self.asked if where == path and one.get("name") == name]


@asynccontextmanager
async def webhook_server(folder: Path) -> AsyncIterator[WebhookServer]:
    authority = Authority(folder, "webhook-ca", SystemClock().now())
    pair = authority.issue("webhook", Identity("webhook", hosts=(HOST,)))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    bundle = base64.b64encode(authority.certificate.read_bytes()).decode()
    server = WebhookServer("", bundle)

    async def answer(request: web.Request) -> web.Response:
        review = orjson.loads(await request.read())
        path, asked = request.path.strip("/"), review["request"]
        server.asked.append((path, asked))
        response = {"uid": asked["uid"], **server.answers[path](asked)}
        return web.json_response(
            {**{key: review[key] for key in ("apiVersion", "kind")}, "response": response}
        )

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0, ssl_context=tls).start()
        server.url = f"https://{HOST}:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
