"""Holds on the whole extender: over mutual TLS, durable in Kubernetes, in every answer, across leaders."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpuloom.cli.main import exit_code_of
from gpuloom.clients.extender import explain, what_if
from gpuloom.clients.holds import HoldClient, HoldWish
from gpuloom.clients.ledger import LedgerMirror
from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError, NotReadyError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import DeviceRef
from gpuloom.names import LABEL_GANG
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import SystemClock
from tests.mesh.node_agent.builders import Service
from tests.mesh.rpc.builders import a_channel, an_environment
from tests.mesh.scheduler_extender.kubernetes import JsonObject, add_pod, devices_of, ref_of
from tests.mesh.scheduler_extender.mesh import Cluster, a_cluster, ready
from tests.mesh.scheduler_extender.replicas import serves, start_replica
from tests.mesh.scheduler_extender.test_extender import a_bind, a_call
from tests.mesh.scheduler_extender.test_inquiries import environment_of
from tests.mesh.waiting import running, until

HOLDS = "gpuholds.gpuloom.dev"
CARD_0, CARD_1 = (AllocatedDevice(DeviceRef(f"GPU-n1-{index}"), 1000, 0) for index in (0, 1))


def a_wish(name: str = "h", device: AllocatedDevice | None = CARD_0, **more: Any) -> HoldWish:
    return HoldWish(name, "n1", "being cut", more.pop("ttl_s", 60), device=device, **more)


@asynccontextmanager
async def held_by(folder: Path, service: Service, caller: str = "cli") -> AsyncIterator[HoldClient]:
    environment = an_environment(tls_files(folder, caller))
    async with a_channel(environment, service.servers[0]) as channel:
        yield HoldClient(channel)


@asynccontextmanager
async def a_ready_cluster(folder: Path) -> AsyncIterator[tuple[Cluster, Service, HoldClient]]:
    """One node of two cards."""
    async with a_cluster(folder) as cluster:
        cluster.add_node("n1", gpus=2)
        service = await cluster.start_extender()
        await ready(service)
        async with held_by(folder, service) as holds:
            yield cluster, service, holds


async def refusal(cluster: Cluster, service: Service, pod: JsonObject) -> str:
    """What filter says of the node; empty if it takes the pod."""
    answer = (await cluster.ask(service, "filter", a_call(pod, "n1"))).json
    failed = {**(answer.get("FailedNodes") or {}), **(answer.get("FailedAndUnresolvableNodes") or {})}
    return "" if answer.get("NodeNames") else str(failed["n1"])


async def test_what_is_held_is_given_to_nobody_and_everybody_says_why(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service, holds):
        both = add_pod(cluster.api, "both", {"gpuloom.dev/gpu-milli": "2000"})
        one = add_pod(cluster.api, "one")

        hold = await holds.take(a_wish())
        filtered = await refusal(cluster, service, both)
        refused = (await cluster.ask(service, "bind", a_bind(both, "n1"))).json["Error"]
        bound = (await cluster.ask(service, "bind", a_bind(one, "n1"))).json["Error"]
        async with a_channel(an_environment(tls_files(tmp_path, "cli")), service.servers[0]) as channel:
            told = await explain(channel, ref_of(both), 10.0)
            forecast = await what_if(channel, orjson.dumps(both), 1, 10.0)

        assert "held: being cut" in filtered == refused
        assert told.judgement is not None
        assert [reason.reason for reason in told.judgement.reasons] == [filtered]
        assert forecast.placed == ()
        assert (bound, devices_of(cluster.api, "one")) == ("", ["GPU-n1-1"])
        assert hold.taken_by == "cli"
        assert cluster.api.store.get(HOLDS, "h")["spec"]["takenBy"] == "cli"


async def test_a_hold_can_be_taken_once_and_again_under_its_name(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service, holds):
        pod = add_pod(cluster.api, "one", {"gpuloom.dev/gpu-milli": "500"})
        assert (await cluster.ask(service, "bind", a_bind(pod, "n1"))).json["Error"] == ""
        (used,) = devices_of(cluster.api, "one")
        free = CARD_1 if used == "GPU-n1-0" else CARD_0
        in_use = CARD_0 if free is CARD_1 else CARD_1

        first = await holds.take(a_wish(device=free))
        again = await holds.take(a_wish(device=free))
        with pytest.raises(ConflictError, match="held already: h"):
            await holds.take(a_wish("other", free))
        with pytest.raises(ConflictError, match="in use by default/one"):
            await holds.take(a_wish("other", in_use))
        with pytest.raises(ConflictError, match="another hold of the name"):
            await holds.take(a_wish(device=in_use))
        beside = await holds.take(a_wish("other", in_use, allow_used=True))
        with pytest.raises(ConflictError, match="does not exist"):
            await holds.take(HoldWish("third", "nowhere", "x", 60))

        assert (first.name, again.device, beside.device) == ("h", free, in_use)
        assert [hold.name for hold in await holds.list()] == ["h", "other"]


@pytest.mark.parametrize("owner", ["pod", "gang"])
async def test_exactly_the_owner_is_let_through(tmp_path: Path, owner: str) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service, holds):
        stranger = add_pod(cluster.api, "stranger")
        mine = add_pod(cluster.api, "mine", {"gpuloom.dev/gpu-milli": "2000"}, labels={LABEL_GANG: "g"})
        uid = mine["metadata"]["uid"]
        of_pod, of_gang = HoldOwner("Pod", "mine", "default", uid), HoldOwner("Gang", "g", "default")
        for name, card in (("h0", CARD_0), ("h1", CARD_1)):
            await holds.take(a_wish(name, card, owner=of_pod if owner == "pod" else of_gang))

        kept = await refusal(cluster, service, stranger)
        let_through = await refusal(cluster, service, mine)
        bound = (await cluster.ask(service, "bind", a_bind(mine, "n1"))).json["Error"]

        assert "held: being cut" in kept
        assert (let_through, bound) == ("", "")
        assert devices_of(cluster.api, "mine") == ["GPU-n1-0", "GPU-n1-1"]
        if owner == "pod":
            # What was held for it has become its own.
            await until(lambda: not cluster.api.store.select(HOLDS))


async def test_a_hold_lasts_as_long_as_it_is_renewed_and_ends_when_it_is_not(tmp_path: Path) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service, holds):
        pod = add_pod(cluster.api, "both", {"gpuloom.dev/gpu-milli": "2000"})
        taken = await holds.take(a_wish(ttl_s=60))
        renewed = await holds.renew("h", ttl_s=3600)
        with pytest.raises(NotFoundError):
            await holds.renew("unknown", ttl_s=60)
        assert taken.expires is not None
        assert renewed.expires is not None
        assert renewed.expires > taken.expires

        cluster.api.store.update(HOLDS, {**cluster.api.store.get(HOLDS, "h"), "spec": expired(cluster, "h")})
        await until(lambda: not cluster.api.store.select(HOLDS))

        assert await refusal(cluster, service, pod) == ""
        with pytest.raises(NotFoundError):
            await holds.renew("h", ttl_s=60)


async def test_a_hold_that_somebody_else_writes_counts_as_well(
    tmp_path: Path,
) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service, holds):
        pod = add_pod(cluster.api, "p")
        spec = {
            "target": {"nodeName": "n1"},
            "owner": {"kind": "Administrator", "name": "alice"},
            "reason": "repair",
        }
        cluster.api.store.create(HOLDS, {"metadata": {"name": "by-hand"}, "spec": spec})
        await until_refused(cluster, service, pod, "held: repair")

        await holds.release("by-hand")
        assert await refusal(cluster, service, pod) == ""


async def test_a_new_leader_knows_what_is_held_before_it_serves(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        cluster.add_node("n1", gpus=2)
        pod = add_pod(cluster.api, "both", {"gpuloom.dev/gpu-milli": "2000"})
        first = await start_replica(cluster, "first")
        await until(lambda: serves(first))
        second = await start_replica(cluster, "second")
        await ready(second)
        async with held_by(tmp_path, second) as standby:
            with pytest.raises(NotReadyError, match="standby"):
                await standby.take(a_wish())
        async with held_by(tmp_path, first) as holds:
            await holds.take(a_wish())

        await first.stop()
        await until(lambda: serves(second))
        async with held_by(tmp_path, second) as holds:
            assert "held: being cut" in await refusal(cluster, second, pod)
            await holds.renew("h", ttl_s=60)
            await holds.release("h")
            await holds.release("h")

        assert await refusal(cluster, second, pod) == ""


async def test_readers_of_the_ledger_see_holds(tmp_path: Path) -> None:
    async with (
        a_ready_cluster(tmp_path) as (_, service, holds),
        a_channel(an_environment(tls_files(tmp_path, "cli")), service.servers[0]) as channel,
    ):
        mirror = LedgerMirror(channel, SystemClock())
        async with running(mirror.run):
            await mirror.wait_synced()
            taken = await holds.take(a_wish())

            await until(lambda: mirror.nodes["n1"].holds == (taken,))


async def test_only_who_took_a_hold_may_renew_it_and_only_known_callers_may_call(
    tmp_path: Path,
) -> None:
    async with a_ready_cluster(tmp_path) as (cluster, service, holds):
        spec = {
            "target": {"nodeName": "n1"},
            "owner": {"kind": "Service", "name": "mig_controller"},
            "reason": "x",
            "takenBy": "mig_controller",
        }
        cluster.api.store.create(HOLDS, {"metadata": {"name": "theirs"}, "spec": spec})
        await until(lambda: bool(cluster.api.store.select(HOLDS)))
        while "theirs" not in [hold.name for hold in await holds.list()]:
            pass

        with pytest.raises(NotAllowedError, match="taken by mig_controller"):
            await holds.renew("theirs", ttl_s=60)
        async with held_by(tmp_path, service, "discovery") as stranger:
            with pytest.raises(NotAllowedError, match="discovery may not call TakeHold"):
                await stranger.take(a_wish())


async def test_the_command_shows_and_ends_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_ready_cluster(tmp_path) as (_, service, holds):
        await holds.take(a_wish())
        for name, value in environment_of(tmp_path, service).items():
            monkeypatch.setenv(name, value)

        shown = [await asyncio.to_thread(exit_code_of, arguments) for arguments in COMMANDS]

    out = capsys.readouterr().out
    assert shown == [0, 0, 0, 0, 1]
    assert "h     n1    GPU-n1-0  Service cli  cli" in out
    assert '"reason": "being cut"' in out
    assert out.endswith("h is over\nnothing is held\n")


COMMANDS = (
    ["holds"],
    ["holds", "-o", "json"],
    ["holds", "--release", "h"],
    ["holds"],
    ["holds", "--release", "h"],
)


async def until_refused(cluster: Cluster, service: Service, pod: JsonObject, reason: str) -> None:
    for _ in range(500):
        if reason in await refusal(cluster, service, pod):
            return
    raise AssertionError(f"never refused for: {reason}")


def expired(cluster: Cluster, name: str) -> JsonObject:
    return {**cluster.api.store.get(HOLDS, name)["spec"], "expiresAt": "2020-01-01T00:00:00Z"}
