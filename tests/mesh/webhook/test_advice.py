"""Advice over real gRPC with certificates: what is told, and what a slow or absent optimizer costs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock
from gpuloom.v1 import optimizer_pb2 as pb
from services.webhook.adapters.optimizer import OptimizerAdvisor, asking
from services.webhook.core.pods import Advice
from services.webhook.metrics import WebhookMetrics
from tests.cluster.stand_in_optimizer import StandInOptimizer, serving

CLOCK = SystemClock()
POD = {"metadata": {"generateName": "serve-"}, "spec": {"containers": [{"name": "c"}]}}
AMPLE_S = 20.0


class Sides:
    def __init__(self, optimizer: StandInOptimizer, channel: RpcChannel) -> None:
        self.optimizer = optimizer
        self.registry = CollectorRegistry()
        self.advisor = OptimizerAdvisor(asking(channel, AMPLE_S), CLOCK, WebhookMetrics(self.registry))

    def asked(self, result: str) -> float | None:
        return self.registry.get_sample_value("gpuloom_webhook_advice_total", {"result": result})


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[Sides]:
    issue_development_certificates(folder, CertificateOrder(), CLOCK)
    optimizer = StandInOptimizer(CLOCK)
    environment = RpcEnvironment(tls_files(folder, "webhook"), CollectorRegistry(), CLOCK)
    async with (
        serving(optimizer, folder, 0, CLOCK) as port,
        RpcChannel(environment, f"127.0.0.1:{port}", "optimizer") as channel,
    ):
        await channel.wait_ready(AMPLE_S)
        sides = Sides(optimizer, channel)
        async with sides.advisor:
            yield sides


async def test_what_the_optimizer_advises_reaches_admission(tmp_path: Path) -> None:
    async with both(tmp_path) as sides:
        sides.optimizer.advice = pb.AdviseResponse(
            utilization=0.25, mig_profile="1g.10gb", milli=250, memory_mib=4096, confidence=0.8, runs=9
        )

        found = await sides.advisor.advice(POD, "team", timeout_s=AMPLE_S)

    assert found == Advice(0.25, "1g.10gb", None, 250, 4096)
    assert sides.asked("advised") == 1.0


async def test_a_kind_of_pod_that_is_not_known_has_no_advice(tmp_path: Path) -> None:
    async with both(tmp_path) as sides:
        sides.optimizer.advice = pb.AdviseResponse(reason="nobody ran this before")

        assert await sides.advisor.advice(POD, "team", timeout_s=AMPLE_S) is None
        assert sides.asked("none") == 1.0


@pytest.mark.parametrize("timeout_s", [0.03])
async def test_an_optimizer_that_is_slow_costs_no_more_than_the_deadline(
    tmp_path: Path, timeout_s: float
) -> None:
    async with both(tmp_path) as sides:
        sides.optimizer.takes_s = 3600.0

        found = await sides.advisor.advice(POD, "team", timeout_s=timeout_s)

    assert found is None
    assert sides.asked("late") == 1.0


async def test_without_an_optimizer_there_is_no_advice(tmp_path: Path) -> None:
    async with both(tmp_path) as sides:
        issue = RpcEnvironment(tls_files(tmp_path, "webhook"), CollectorRegistry(), CLOCK)
        async with RpcChannel(issue, "127.0.0.1:1", "optimizer") as nowhere:
            advisor = OptimizerAdvisor(asking(nowhere), CLOCK, WebhookMetrics(CollectorRegistry()))

            async with advisor:
                assert await advisor.advice(POD, "team", timeout_s=0.5) is None
        assert sides.asked("failed") is None
