"""Explain, what-if and the quarantine on the whole extender: over mutual TLS, and by the command."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpuloom.cli.main import exit_code_of
from gpuloom.clients.extender import explain, what_if
from gpuloom.errors import InvalidRequestError, NotAllowedError, NotFoundError, NotReadyError
from gpuloom.model.explanation import PodStanding
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.v1.scheduler_extender_pb2 import ExplainRequest, WhatIfRequest
from gpuloom.v1.scheduler_extender_pb2_grpc import SchedulerExtenderServiceStub
from services.scheduler_extender.core.verbs.quarantine import REASON
from tests.mesh.node_agent.builders import Service
from tests.mesh.rpc.builders import a_channel, an_environment
from tests.mesh.scheduler_extender.kubernetes import BINDING, JsonObject, add_pod
from tests.mesh.scheduler_extender.mesh import Cluster, a_cluster, ready
from tests.mesh.scheduler_extender.replicas import serves, start_replica
from tests.mesh.scheduler_extender.test_extender import a_bind, a_call, schedule
from tests.mesh.waiting import PATIENCE_S, until
from tests.unit.scheduler_extender.builders import gpuloom_share


@asynccontextmanager
async def calling(folder: Path, service: Service, caller: str = "cli") -> AsyncIterator[RpcChannel]:
    environment = an_environment(tls_files(folder, caller))
    async with a_channel(environment, service.servers[0]) as channel:
        yield channel


@asynccontextmanager
async def a_ready_cluster(folder: Path) -> AsyncIterator[tuple[Cluster, Service]]:
    """One node of two cards."""
    async with a_cluster(folder) as cluster:
        cluster.add_node("n1", gpus=2)
        service = await cluster.start_extender()
        await ready(service)
        yield cluster, service


async def observed(service: Service, folder: Path, name: str, standing: PodStanding) -> Any:
    """The explanation, when the informer has come so far."""
    async with calling(folder, service) as channel, asyncio.timeout(PATIENCE_S):
        while True:
            try:
                found = await explain(channel, PodRef("default", name, ""), PATIENCE_S)
            except NotFoundError:
                continue
            if found.standing is standing:
                return found


async def test_a_pod_is_explained_before_and_after_it_is_bound(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service):
        pod = add_pod(cluster.api, "p")

        waiting = await observed(service, tmp_path, "p", PodStanding.FITS)
        async with cluster.line(service) as line:
            node_name = await schedule(line, pod, "n1")
        bound = await observed(service, tmp_path, "p", PodStanding.BOUND)

    assert waiting.judgement.offers[0].node_name == node_name == bound.node_name
    assert waiting.judgement.offers[0].devices == bound.devices
    assert [decision.node_name for decision in bound.decisions] == ["n1"]


async def test_what_if_sees_what_is_taken_and_changes_nothing(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service):
        pod = add_pod(cluster.api, "p", gpuloom_share(500))
        async with calling(tmp_path, service) as channel, cluster.line(service) as line:
            before = await what_if(channel, orjson.dumps(pod), 10, PATIENCE_S)
            await schedule(line, pod, "n1")
            after = await what_if(channel, orjson.dumps(pod), 10, PATIENCE_S)

    assert (len(before.placed), len(after.placed)) == (4, 3)
    assert after.judgement is not None
    assert after.judgement.reasons[0].reason == "no GPU with 500 milli free"


async def test_explain_says_that_the_admission_policies_are_missing(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service):
        add_pod(cluster.api, "p")
        note = ""
        async with asyncio.timeout(PATIENCE_S):
            while "not in force" not in note:
                note = (await observed(service, tmp_path, "p", PodStanding.FITS)).note

    assert "gpuloom-allocation-annotations (there is no such ValidatingAdmissionPolicy" in note


async def test_a_standby_says_who_leads(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1")
        leader = await start_replica(cluster, "first")
        await until(lambda: serves(leader))
        standby = await start_replica(cluster, "second")
        await ready(standby)

        async with calling(tmp_path, standby) as channel:
            with pytest.raises(NotReadyError, match="standby; leader is first-"):
                await explain(channel, PodRef("default", "p", ""), PATIENCE_S)
            with pytest.raises(NotReadyError, match="standby; leader is first-"):
                await what_if(channel, b'{"spec": {}}', 1, PATIENCE_S)


async def test_malformed_and_huge_questions_are_refused_and_the_service_goes_on(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (_, service), calling(tmp_path, service) as channel:
        stub = channel.stub(SchedulerExtenderServiceStub)
        for text in (b"", b"\xff\xfe", b"[]", b'{"spec": []}', b"[" * 10_000, b" " * 2_000_000):
            with pytest.raises(InvalidRequestError):
                await stub.WhatIf(WhatIfRequest(pod_json=text), timeout=PATIENCE_S)
            with pytest.raises(InvalidRequestError):
                await stub.Explain(ExplainRequest(pod_json=text), timeout=PATIENCE_S)
        with pytest.raises(InvalidRequestError, match="replicas must be 1 to 1000"):
            await stub.WhatIf(WhatIfRequest(pod_json=b'{"spec": {}}', replicas=2**32 - 1), timeout=PATIENCE_S)
        with pytest.raises(NotFoundError, match="no pod default/nobody"):
            await explain(channel, PodRef("", "nobody", ""), PATIENCE_S)

        alive = await what_if(channel, b'{"spec": {}}', 1, PATIENCE_S)

    assert alive.placed == ()


async def test_only_who_is_listed_may_ask(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (_, service), calling(tmp_path, service, "discovery") as channel:
        with pytest.raises(NotAllowedError):
            await explain(channel, PodRef("default", "p", ""), PATIENCE_S)
        with pytest.raises(NotAllowedError):
            await what_if(channel, b'{"spec": {}}', 1, PATIENCE_S)


async def test_a_pod_whose_binds_are_refused_is_quarantined_and_says_so(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service):
        pod = add_pod(cluster.api, "p")
        cluster.api.faults.fail_next("POST", BINDING, status=403, times=3)
        async with cluster.line(service) as line:
            for _ in range(3):
                assert (await line.post("/bind", a_bind(pod, "n1"))).json["Error"]
            held = (await line.post("/filter", a_call(pod, "n1"))).json
        found = await observed(service, tmp_path, "p", PodStanding.REFUSED)
        metric = service.app.registry.get_sample_value("gpuloom_scheduler_extender_quarantined")

    assert held["FailedNodes"] == {"n1": REASON}
    assert found.problem == REASON
    assert found.quarantine.failures == 3
    assert metric == 1.0


def environment_of(folder: Path, service: Service) -> dict[str, str]:
    files = tls_files(folder, "cli")
    return {
        "GPULOOM_EXTENDER_ADDRESS": f"127.0.0.1:{service.port}",
        "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
        "GPULOOM_TLS_KEY_FILE": str(files.key_file),
        "GPULOOM_TLS_CA_FILE": str(files.ca_file),
    }


def a_deployment(replicas: int) -> JsonObject:
    container = {"name": "main", "resources": {"limits": gpuloom_share(1000)}}
    spec = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


async def test_the_commands_answer_with_text_json_and_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def command(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(exit_code_of, list(arguments))
        said = capsys.readouterr()
        return code, said.out or said.err

    async with a_ready_cluster(tmp_path) as (cluster, service):
        for name, value in environment_of(tmp_path, service).items():
            monkeypatch.setenv(name, value)
        file = tmp_path / "deployment.json"
        file.write_bytes(orjson.dumps(a_deployment(2)))
        add_pod(cluster.api, "large", gpuloom_share(4000))
        await observed(service, tmp_path, "large", PodStanding.REFUSED)

        fits = await command("whatif", "-f", str(file))
        too_many = await command("whatif", "-f", str(file), "--replicas", "3", "-o", "json")
        refused = await command("explain", "pod", "default/large")
        absent = await command("explain", "pod", "nobody")
        await service.stop()
        unreachable = await command("explain", "pod", "nobody", "--timeout", "1")

    assert fits[0] == 0
    assert fits[1].startswith("Deployment d: 2 of 2 would fit\n")
    assert too_many[0] == 1
    assert len(orjson.loads(too_many[1])["placed"]) == 2
    assert refused[0] == 1
    assert "n1: 2 of 4 GPUs free" in refused[1]
    assert absent == (1, "gpuloom: no pod default/nobody\n")
    assert unreachable[0] == 3
