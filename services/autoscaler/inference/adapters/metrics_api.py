"""The aggregated API custom.metrics.k8s.io and external.metrics.k8s.io over HTTPS.

Every request but /healthz, /livez and /readyz has a user whom Kubernetes knows and who may ask exactly this.
Nothing here can be written.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import orjson
from aiohttp import web

from gpuloom.errors import GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.policies import ScaleTarget
from gpuloom.rpc.server import ListenError
from gpuloom.rpc.tls import CertificateSource
from gpuloom.runtime.clock import Clock
from services.autoscaler.inference.adapters.catalogue import CatalogueReader
from services.autoscaler.inference.adapters.delegation import Delegation
from services.autoscaler.inference.core import catalogue
from services.autoscaler.inference.core.catalogue import CUSTOM, EXTERNAL, VERSIONS, Value

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN = ("/healthz", "/livez", "/readyz")
KINDS = {"deployments.apps": "Deployment", "statefulsets.apps": "StatefulSet"}
MAX_SELECTOR = 2048


class MetricsApi:
    """Serves as long as it is entered."""

    def __init__(
        self,
        reader: CatalogueReader,
        delegation: Delegation,
        certificates: CertificateSource,
        place: tuple[str, int],
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._delegation = delegation
        self._certificates = certificates
        self._host, self._port = place
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        for path in OPEN:
            app.router.add_get(path, _well)
        app.router.add_get("/apis", _groups)
        for group, versions in VERSIONS.items():
            app.router.add_get(f"/apis/{group}", _document(catalogue.group(group)))
            for version in versions:
                document = catalogue.resources(group, version)
                app.router.add_get(f"/apis/{group}/{version}", _document(document))
        custom = f"/apis/{CUSTOM}/{{version}}/namespaces/{{namespace}}/{{resource}}/{{name}}/{{metric}}"
        app.router.add_get(custom, self._custom)
        app.router.add_get(f"/apis/{EXTERNAL}/v1beta1/namespaces/{{namespace}}/{{metric}}", self._external)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        tls = aggregated_context(self._certificates, self._delegation)
        try:
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(f"cannot serve metrics on {self._host}:{self._port}: {error}") from None
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = None if request.path in OPEN else await self._refusal(request)
        if refused is not None:
            return refused
        try:
            return await handler(request)
        except NotFoundError as error:
            return _failure(404, "NotFound", str(error))
        except InvalidRequestError as error:
            return _failure(400, "BadRequest", str(error))
        except GpuloomError as error:
            return _failure(503, "ServiceUnavailable", str(error))
        except web.HTTPException as error:
            return _failure(error.status, error.reason.replace(" ", ""), f"{request.path}: {error.reason}")

    async def _refusal(self, request: web.Request) -> web.Response | None:
        try:
            user = await self._delegation.user_of(request)
            if user is None:
                return _failure(401, "Unauthorized", "a user that Kubernetes knows is needed")
            if await self._delegation.allows(user, _attributes(request)):
                return None
        except GpuloomError as error:
            _log.warning("caller not reviewed", extra={"reason": str(error)})
            return _failure(503, "ServiceUnavailable", "callers can't be reviewed now")
        return _failure(403, "Forbidden", f"user {user.name} may not get {request.path}")

    async def _custom(self, request: web.Request) -> web.Response:
        version, namespace, resource, name, metric = (
            request.match_info[one] for one in ("version", "namespace", "resource", "name", "metric")
        )
        if version not in VERSIONS[CUSTOM]:
            raise NotFoundError(f"there is no version {version} of {CUSTOM}")
        if resource == "pods":
            found = await self._reader.of_pods(namespace, name, _selector(request), metric)
        elif resource in KINDS:
            target = ScaleTarget(KINDS[resource], name)
            amount = await self._reader.of_target(namespace, target, metric)
            found = [Value(target.kind, target.api_version, name, amount)]
        else:
            raise NotFoundError(f"there are metrics of pods, {' and '.join(KINDS)}, not of {resource}")
        answer = catalogue.custom_values(version, namespace, metric, found, self._clock.now())
        return web.json_response(answer)

    async def _external(self, request: web.Request) -> web.Response:
        namespace, metric = request.match_info["namespace"], request.match_info["metric"]
        terms = (term.partition("=") for term in _selector(request).split(","))
        labels = {key.strip(): value.strip() for key, _, value in terms}
        named = [(kind, labels[label]) for label, kind in catalogue.TARGET_LABELS.items() if label in labels]
        if len(named) != 1 or len(labels) != 1:
            wanted = " or ".join(catalogue.TARGET_LABELS)
            raise InvalidRequestError(f"the selector of an external metric is one label, {wanted}")
        ((kind, name),) = named
        amount = await self._reader.of_target(namespace, ScaleTarget(kind, name), metric)
        return web.json_response(catalogue.external_values(metric, labels, amount, self._clock.now()))


def aggregated_context(source: CertificateSource, delegation: Delegation) -> ssl.SSLContext:
    """Each handshake has the newest certificate of ours, and trusts the front proxy's authority alone.

    Not the mesh's own authority: a service of ours could else speak for any user.
    """

    def load() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(source.files.cert_file, source.files.key_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        delegation.trust(context)
        return context

    def state() -> tuple[int, str]:
        return source.current().generation, delegation.proxy.authority

    newest, loaded = load(), state()
    first = newest

    def renew(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal newest, loaded
        if state() != loaded:
            try:
                newest, loaded = load(), state()
            except (OSError, ssl.SSLError) as error:
                # The files are being replaced; the next handshake looks again.
                _log.warning("certificate not reloaded for HTTPS", extra={"reason": str(error)})
        connection.context = newest

    first.sni_callback = renew
    return first


def _attributes(request: web.Request) -> JsonObject:
    """What is asked for, in the words of Kubernetes' rights."""
    match = request.match_info
    if "metric" not in match:
        return {"nonResourceAttributes": {"path": request.path, "verb": "get"}}
    attributes = {"verb": "get", "namespace": match["namespace"]}
    if "resource" in match:
        attributes |= {"group": CUSTOM, "version": match["version"], "name": match["name"]}
        attributes |= {"resource": match["resource"].partition(".")[0], "subresource": match["metric"]}
    else:
        attributes |= {"group": EXTERNAL, "version": "v1beta1", "resource": match["metric"]}
    return {"resourceAttributes": attributes}


def _selector(request: web.Request) -> str:
    selector = request.query.get("labelSelector", "")
    if len(selector) > MAX_SELECTOR:
        raise InvalidRequestError(f"a selector has at most {MAX_SELECTOR} characters")
    return selector


def _document(body: JsonObject) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


async def _groups(request: web.Request) -> web.Response:
    """The aggregator asks for everything in one document; those that know an older form ask by version."""
    accepted = request.headers.get("Accept", "")
    forms = [one for one in accepted.split(",") if one.strip()]
    if any("as=APIGroupDiscoveryList" in one and "v=v2;" in one for one in forms):
        body = orjson.dumps(catalogue.discovery())
        return web.Response(body=body, headers={"Content-Type": catalogue.DISCOVERY_TYPE})
    if forms and all("as=APIGroupDiscoveryList" in one for one in forms):
        return _failure(406, "NotAcceptable", "discovery is served by version")
    return web.json_response(catalogue.group_list())


async def _well(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _failure(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(catalogue.status(code, reason, message), status=code)
