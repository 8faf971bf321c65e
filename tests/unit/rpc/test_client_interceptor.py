"""Retries, by a fake clock and without a network."""

import asyncio
import random
from collections.abc import Generator
from typing import Any, cast

import grpc
import pytest
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, UnavailableError
from gpuloom.rpc.active_calls import ActiveCalls
from gpuloom.rpc.interceptors import ClientSide, UnaryClientInterceptor
from gpuloom.rpc.methods import UNKNOWN_METHOD, MethodFacts, describe_method
from gpuloom.rpc.metrics import RpcMetrics
from gpuloom.rpc.retry import MAX_ATTEMPTS, retry_delay_s
from gpuloom.runtime.clock import FakeClock
from gpuloom.v1 import scheduler_extender_pb2

METHODS = {
    "/gpuloom.v1.Test/Read": MethodFacts("gpuloom.v1.Test", "Read", retryable=True),
    "/gpuloom.v1.Test/Write": MethodFacts("gpuloom.v1.Test", "Write", retryable=False),
}


class Call:
    """What a continuation returns: awaiting it gives the answer or the failure."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def __await__(self) -> Generator[None, None, str]:
        if self._code is not grpc.StatusCode.OK:
            raise aio.AioRpcError(self._code, aio.Metadata(), aio.Metadata(), details="no")
        yield
        return "answer"


class Wire:
    """Fails with the given codes in turn, then answers; notes the time each attempt was given."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)
        self.timeouts_s: list[float] = []
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.interceptor = UnaryClientInterceptor(
            ClientSide(
                service="test",
                metrics=RpcMetrics(self.registry),
                clock=self.clock,
                chance=random.Random(1),
                describe=lambda path: METHODS.get(path, UNKNOWN_METHOD),
                calls=ActiveCalls(),
            )
        )

    async def call(self, method: str, timeout_s: float = 5.0) -> str:
        path = cast(str, f"/gpuloom.v1.Test/{method}".encode())
        details = aio.ClientCallDetails(path, timeout_s, None, None, None)
        calling = asyncio.create_task(
            self.interceptor.intercept_unary_unary(self._continue, details, "request")
        )
        await self.clock.advance(timeout_s)
        return str(await calling)

    async def _continue(self, details: aio.ClientCallDetails, _request: str) -> Any:
        assert details.timeout is not None
        self.timeouts_s.append(details.timeout)
        return Call(self._codes.pop(0) if self._codes else grpc.StatusCode.OK)


async def test_a_harmless_call_is_tried_again_within_one_deadline() -> None:
    wire = Wire(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)

    answer = await wire.call("Read")

    assert answer == "answer"
    assert wire.timeouts_s == sorted(wire.timeouts_s, reverse=True)
    assert wire.timeouts_s[0] == 5.0
    assert len(set(wire.timeouts_s)) == 3


async def test_three_attempts_are_the_end() -> None:
    wire = Wire(*[grpc.StatusCode.UNAVAILABLE] * 9)

    with pytest.raises(UnavailableError):
        await wire.call("Read")

    assert len(wire.timeouts_s) == MAX_ATTEMPTS
    labels = {"service": "gpuloom.v1.Test", "method": "Read"}
    assert wire.registry.get_sample_value("gpuloom_rpc_client_retries_total", labels) == 2
    handled = wire.registry.get_sample_value(
        "gpuloom_rpc_client_handled_total", {**labels, "code": "UNAVAILABLE"}
    )
    assert handled == 1


@pytest.mark.parametrize("method", ["Write", "NotInTheContract"])
async def test_a_call_that_may_have_acted_is_never_repeated(method: str) -> None:
    wire = Wire(grpc.StatusCode.UNAVAILABLE)

    with pytest.raises(UnavailableError):
        await wire.call(method)

    assert len(wire.timeouts_s) == 1


async def test_a_clear_answer_is_not_asked_for_again() -> None:
    wire = Wire(grpc.StatusCode.ABORTED)

    with pytest.raises(ConflictError):
        await wire.call("Read")

    assert len(wire.timeouts_s) == 1


async def test_a_wait_that_would_outlast_the_deadline_is_not_begun() -> None:
    wire = Wire(*[grpc.StatusCode.UNAVAILABLE] * 9)

    with pytest.raises(UnavailableError):
        await wire.call("Read", timeout_s=0.001)

    assert len(wire.timeouts_s) == 1


@given(attempts=st.integers(1, 10), left_s=st.floats(0, 100), seed=st.integers())
def test_a_retry_waits_a_bounded_time_inside_the_deadline(attempts: int, left_s: float, seed: int) -> None:
    delay_s = retry_delay_s(attempts, left_s, random.Random(seed))

    assert delay_s is None or (attempts < MAX_ATTEMPTS and 0 <= delay_s <= min(1.0, left_s))


def test_the_contract_says_what_may_be_repeated() -> None:
    service = scheduler_extender_pb2.DESCRIPTOR.services_by_name["SchedulerExtenderService"]

    facts = describe_method(f"/{service.full_name}/ListAllocations")

    assert facts == MethodFacts(
        "gpuloom.v1.SchedulerExtenderService", "ListAllocations", retryable=True, reads=True
    )
    assert describe_method("/gpuloom.v1.SchedulerExtenderService/Nothing") == UNKNOWN_METHOD
    assert describe_method("nonsense") == UNKNOWN_METHOD
