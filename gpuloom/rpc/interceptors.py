"""The only place that knows gRPC status codes.

The server's side decides for every RPC: who calls, may they, how long may it take, and what the caller is
told when it fails: our own errors with their text, anything else as an incident number that the log explains.
The client's side turns codes back into our errors, hands on the deadline of the call being served, and
repeats what is harmless to repeat. Neither decides what a method does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    TooLargeError,
    UnavailableError,
)
from gpuloom.rpc.active_calls import ActiveCalls
from gpuloom.rpc.deadline import (
    DEFAULT_TIMEOUT_S,
    remaining_s,
    serve_until,
    stream_timeout_s,
    unary_timeout_s,
)
from gpuloom.rpc.draining import next_of, next_unless
from gpuloom.rpc.identity import UnauthenticatedError, authorize, authorized_as, identity_from_auth_context
from gpuloom.rpc.methods import UNKNOWN_METHOD, MethodFacts
from gpuloom.rpc.metrics import ObservedCall, RpcMetrics
from gpuloom.rpc.retry import retry_delay_s
from gpuloom.runtime.clock import Clock, deadline

_log = logging.getLogger(__name__)

ERROR_KIND_KEY = "gpuloom-error"
"""Trailing metadata that names our error exactly, where several share one code."""

_MAX_TEXT_BYTES = 2048  # percent-encoded on the wire, a text stays far below gRPC's 8 KiB for metadata


class RemoteFailureError(GpuloomError):
    """The other side failed in a way that says nothing about the request; its log knows the incident."""


class UnreachableError(UnavailableError):
    """No connection, or it broke. The transport's reason in the text is for our log, not for our callers."""

    def __init__(self, service: str, detail: str) -> None:
        super().__init__(f"{service} can't be reached: {detail}")
        self.public_text = f"{service} can't be reached"


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    error: type[GpuloomError]
    code: grpc.StatusCode


_KINDS = (
    _Kind("invalid_request", InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    _Kind("not_found", NotFoundError, grpc.StatusCode.NOT_FOUND),
    _Kind("conflict", ConflictError, grpc.StatusCode.ABORTED),
    _Kind("unauthenticated", UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    _Kind("not_allowed", NotAllowedError, grpc.StatusCode.PERMISSION_DENIED),
    _Kind("not_ready", NotReadyError, grpc.StatusCode.UNAVAILABLE),
    _Kind("unavailable", UnavailableError, grpc.StatusCode.UNAVAILABLE),
    _Kind("deadline", DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    _Kind("too_large", TooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED),
)
_KIND_BY_NAME = {kind.name: kind for kind in _KINDS}
_ERROR_BY_CODE: Mapping[grpc.StatusCode, type[GpuloomError]] = {
    **{kind.code: kind.error for kind in _KINDS if kind.error is not NotReadyError},
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
}
_BROKEN_OFF = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

_Request = TypeVar("_Request")
_Message = TypeVar("_Message")
_Part = TypeVar("_Part")
_Context = aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time


@dataclass(frozen=True, slots=True)
class MethodPolicy:
    """How one RPC is served. `allowed` None: every authenticated caller."""

    facts: MethodFacts
    allowed: frozenset[str] | None
    serves_while_draining: bool = False


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the server's interceptor works with. Without TLS there is no caller to check."""

    policies: Mapping[str, MethodPolicy]
    authenticated: bool
    draining: asyncio.Future[None]
    metrics: RpcMetrics
    clock: Clock


class ServerInterceptor(aio.ServerInterceptor):
    """Wraps every handler. It parses and serializes itself, so that no failure of either escapes unmapped."""

    def __init__(self, side: ServerSide) -> None:
        self._side = side

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        policy = self._side.policies.get(handler_call_details.method)
        handler = await continuation(handler_call_details) if policy else None
        if policy is None or handler is None:
            observed = self._side.metrics.server.begin(UNKNOWN_METHOD, self._side.clock)
            observed.end(grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(policy, handler), handler.request_deserializer
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(policy, handler))
        return grpc.unary_unary_rpc_method_handler(self._unary(policy, handler))

    def _unary(self, policy: MethodPolicy, handler: _Handler) -> Callable[..., Awaitable[bytes]]:
        behaviour: Callable[..., Awaitable[Any]] = _required(handler.unary_unary)
        serialize = _required(handler.response_serializer)

        async def serve(raw: bytes, context: _Context) -> bytes:
            async with self._border(policy, context):
                request = _parse(handler, raw)
                return serialize(await self._in_time(behaviour(request, context), context))

        return serve

    def _streaming(self, policy: MethodPolicy, handler: _Handler) -> Callable[..., Awaitable[None]]:
        kind = handler.stream_stream if handler.request_streaming else handler.unary_stream
        # RpcServer.add has made sure of an async generator; gRPC's types know only the synchronous kind.
        behaviour = cast(Callable[..., AsyncGenerator[Any, None]], _required(kind))
        serialize = _required(handler.response_serializer)

        async def serve(raw: Any, context: _Context) -> None:
            async with self._border(policy, context):
                request = raw if handler.request_streaming else _parse(handler, raw)
                left_s = _left_s(context)
                serve_until(None if left_s is None else self._side.clock.monotonic() + left_s)
                async with aclosing(behaviour(request, context)) as messages:
                    while found := await self._next(messages, policy):
                        await context.write(serialize(found[0]))

        return serve

    @asynccontextmanager
    async def _border(self, policy: MethodPolicy, context: _Context) -> AsyncIterator[None]:
        """Admits the caller, and lets nothing out but a status that the caller may see."""
        observed = self._side.metrics.server.begin(policy.facts, self._side.clock)
        try:
            self._admit(policy, context)
            yield
        except asyncio.CancelledError:
            expired = _left_s(context) == 0
            observed.end((grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED).name)
            raise
        except aio.BaseError:
            # gRPC's own way to end a handler whose connection or server is gone.
            observed.end(grpc.StatusCode.CANCELLED.name)
            raise
        except Exception as error:  # noqa: BLE001  # the border: whatever it is, the caller gets a status
            code, text, kind = _status_of(error, policy.facts)
            observed.end(code.name)
            await context.abort(code, text, ((ERROR_KIND_KEY, kind),))
        observed.end(grpc.StatusCode.OK.name)

    def _admit(self, policy: MethodPolicy, context: _Context) -> None:
        if self._side.authenticated:
            caller = identity_from_auth_context(context.auth_context())
            caller = authorized_as(caller, reads=policy.facts.reads)
            authorize(caller, policy.allowed, policy.facts.method)
        if self._side.draining.done() and not policy.serves_while_draining:
            raise NotReadyError("draining")

    async def _next(self, messages: AsyncIterator[_Message], policy: MethodPolicy) -> tuple[_Message] | None:
        if policy.serves_while_draining:
            return await next_of(messages)
        return await next_unless(self._side.draining, messages)

    async def _in_time(self, work: Awaitable[_Message], context: _Context) -> _Message:
        """gRPC itself cancels a call at the deadline it carries; a call without one gets ours."""
        clock = self._side.clock
        left_s = _left_s(context)
        ends_at_s = clock.monotonic() + (DEFAULT_TIMEOUT_S if left_s is None else left_s)
        serve_until(ends_at_s)
        if left_s is not None:
            return await work
        try:
            async with deadline(clock, DEFAULT_TIMEOUT_S):
                return await work
        except TimeoutError as error:
            if clock.monotonic() < ends_at_s:
                raise
            raise DeadlineError(f"not done within {DEFAULT_TIMEOUT_S:g} s") from error


def _left_s(context: _Context) -> float | None:
    return context.time_remaining()


def _required(part: _Part | None) -> _Part:
    if part is None:
        raise ValueError("the handler lacks a part that its kind must have")
    return part


def _parse(handler: _Handler, raw: bytes) -> Any:
    try:
        return _required(handler.request_deserializer)(raw)
    except DecodeError as error:
        raise InvalidRequestError("the request is no message of the expected type") from error


def _status_of(error: Exception, facts: MethodFacts) -> tuple[grpc.StatusCode, str, str]:
    """Code, text and kind to send. An error that is not meant for callers becomes an incident in the log."""
    for kind in _KINDS:
        if isinstance(error, kind.error):
            text = error.public_text if isinstance(error, UnreachableError) else str(error)
            return kind.code, text.encode()[:_MAX_TEXT_BYTES].decode(errors="ignore"), kind.name
    incident = secrets.token_hex(4)
    _log.error(
        "rpc failed",
        exc_info=error,
        extra={"incident": incident, "rpc_service": facts.service, "rpc_method": facts.method},
    )
    return grpc.StatusCode.INTERNAL, f"internal error, incident {incident}", "internal"


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What the interceptors of one channel work with. `service` is whom it leads to."""

    service: str
    metrics: RpcMetrics
    clock: Clock
    chance: random.Random
    describe: Callable[[str], MethodFacts]
    calls: ActiveCalls


class UnaryClientInterceptor(aio.UnaryUnaryClientInterceptor):
    """Deadline, retries, errors and metrics of unary calls."""

    def __init__(self, side: ClientSide) -> None:
        self._side = side

    async def intercept_unary_unary(
        self,
        continuation: Callable[
            [aio.ClientCallDetails, _Request], Awaitable[aio.UnaryUnaryCall[_Request, _Message]]
        ],
        client_call_details: aio.ClientCallDetails,
        request: _Request,
    ) -> _Message:
        side = self._side
        facts = side.describe(_path(client_call_details))
        observed = side.metrics.client.begin(facts, side.clock)

        async def attempt(timeout_s: float) -> _Message:
            return await (await continuation(_with_timeout(client_call_details, timeout_s), request))

        with side.calls.one(), _observed_errors(side.service, observed):
            timeout_s = unary_timeout_s(client_call_details.timeout, remaining_s(side.clock))
            response = await self._repeat(attempt, facts, timeout_s)
        observed.end(grpc.StatusCode.OK.name)
        return response

    async def _repeat(
        self, attempt: Callable[[float], Awaitable[_Message]], facts: MethodFacts, timeout_s: float
    ) -> _Message:
        side = self._side
        ends_at_s = side.clock.monotonic() + timeout_s
        for attempts in itertools.count(1):
            try:
                return await attempt(ends_at_s - side.clock.monotonic())
            except aio.AioRpcError as error:
                if not facts.retryable or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                delay_s = retry_delay_s(attempts, ends_at_s - side.clock.monotonic(), side.chance)
                if delay_s is None:
                    raise
            side.metrics.retries.labels(facts.service, facts.method).inc()
            await side.clock.sleep(delay_s)
        raise AssertionError("the last attempt returns or raises")


class StreamClientInterceptor(aio.UnaryStreamClientInterceptor):
    """Deadline, errors and metrics of streams. Never a retry: the reader starts over with a full state."""

    def __init__(self, side: ClientSide) -> None:
        self._side = side

    async def intercept_unary_stream(
        self,
        continuation: Callable[
            [aio.ClientCallDetails, _Request], Awaitable[aio.UnaryStreamCall[_Request, _Message]]
        ],
        client_call_details: aio.ClientCallDetails,
        request: _Request,
    ) -> AsyncIterator[_Message]:
        side = self._side
        facts = side.describe(_path(client_call_details))
        observed = side.metrics.client.begin(facts, side.clock)
        with _observed_errors(side.service, observed):
            timeout_s = stream_timeout_s(client_call_details.timeout, remaining_s(side.clock))
            call = await continuation(_with_timeout(client_call_details, timeout_s), request)
        side.calls.begin()

        def done(call: aio.UnaryStreamCall[_Request, _Message]) -> None:
            side.calls.end()
            if call.cancelled():
                observed.end(grpc.StatusCode.CANCELLED.name)

        call.add_done_callback(done)
        return _mapped(call, side.service, observed)


async def _mapped(
    call: aio.UnaryStreamCall[Any, _Message], service: str, observed: ObservedCall
) -> AsyncIterator[_Message]:
    with _observed_errors(service, observed):
        async for message in call:
            if message is None:  # gRPC's word for bytes that it could not parse
                raise RemoteFailureError(f"{service}: sent what is no message of the expected type")
            yield message
    observed.end(grpc.StatusCode.OK.name)


@contextmanager
def _observed_errors(service: str, observed: ObservedCall) -> Iterator[None]:
    """Counts how a call failed, and raises what our code understands."""
    try:
        yield
    except aio.AioRpcError as error:
        observed.end(error.code().name)
        raise error_of(error, service) from error
    except aio.UsageError as error:
        observed.end(grpc.StatusCode.UNAVAILABLE.name)
        raise UnreachableError(service, "the channel is closed; ask for the stub again") from error
    except DeadlineError:
        observed.end(grpc.StatusCode.DEADLINE_EXCEEDED.name)
        raise
    except BaseException:
        observed.end(grpc.StatusCode.CANCELLED.name)
        raise


def error_of(error: aio.AioRpcError, service: str) -> GpuloomError:
    """Our error for a failed call. A text that a server of ours chose is kept as it is."""
    text = error.details() or error.code().name
    sent_kind = (error.trailing_metadata() or aio.Metadata()).get(ERROR_KIND_KEY)
    if sent_kind in _KIND_BY_NAME:
        return _KIND_BY_NAME[str(sent_kind)].error(text)
    if error.code() in _BROKEN_OFF:
        return UnreachableError(service, text)
    return _ERROR_BY_CODE.get(error.code(), RemoteFailureError)(f"{service}: {text}")


def _path(details: aio.ClientCallDetails) -> str:
    method: str | bytes = details.method  # grpc.aio hands out bytes, its type says str
    return method.decode() if isinstance(method, bytes) else method


def _with_timeout(details: aio.ClientCallDetails, timeout_s: float | None) -> aio.ClientCallDetails:
    return aio.ClientCallDetails(
        details.method, timeout_s, details.metadata, details.credentials, details.wait_for_ready
    )
