"""The webhook as a process of its own, registered at the real API server over TLS, under its own account."""

import asyncio
import itertools
from datetime import datetime
from pathlib import Path

import pytest

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import MUTATING_WEBHOOKS, NAMESPACES, PODS, VALIDATING_WEBHOOKS
from gpuloom.rpc.authority import Pair, issue, new_authority
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.processes.ports import HOST
from tests.cluster.binaries import Binaries
from tests.cluster.workplace import Workplace, open_workplace

pytestmark = pytest.mark.real

CLOCK = SystemClock()
NAME, TEAM, OURS = "gpuloom-webhook", "team", "gpuloom-scheduler"
SETTINGS = {
    "GPULOOM_WEBHOOK_SCHEDULER_NAME": OURS,
    "GPULOOM_WEBHOOK_CONFIGURATION": NAME,
    "GPULOOM_WEBHOOK_REJECT": "true",
}


class Creator:
    """Makes GPU pods one after the other, and remembers which scheduler each was given to."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self.schedulers: list[str] = []
        self._numbers = itertools.count()

    async def create(self) -> str:
        resources = {"limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "c", "image": "registry.invalid/x:1", "resources": resources}
        body = {
            "metadata": {"name": f"p-{next(self._numbers)}", "namespace": TEAM},
            "spec": {"containers": [container]},
        }
        pod = await self._place.client.create(PODS, body)
        self.schedulers.append(pod["spec"]["schedulerName"])
        return self.schedulers[-1]

    async def run(self) -> None:
        while True:
            await self.create()
            await CLOCK.sleep(0.05)


def authorities(now: datetime) -> tuple[Pair, Pair]:
    return new_authority("first", now), new_authority("second", now)


def write(place: Workplace, trusted: tuple[Pair, ...], signer: Pair) -> None:
    """As a Secret does it: the certificate, its key, and who may have signed it."""
    files = tls_files(place.layout.certificates, "webhook")
    pair = issue(signer, "webhook", CLOCK.now(), 1, [HOST])
    files.ca_file.write_bytes(b"".join(one.certificate_pem() for one in trusted))
    files.key_file.write_bytes(pair.key_pem())
    files.cert_file.write_bytes(pair.certificate_pem())


def configuration(port: int, path: str, resource: tuple[str, str], policy: str = "Ignore") -> JsonObject:
    group, plural = resource
    rule = {"operations": ["CREATE"], "apiGroups": [group], "apiVersions": ["*"], "resources": [plural]}
    return {
        "name": f"{path.strip('/')}.gpuloom.dev",
        "clientConfig": {"url": f"https://{HOST}:{port}{path}"},
        "rules": [rule],
        "failurePolicy": policy,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 10,
    }


async def bundle(place: Workplace) -> str:
    found = await place.client.get(MUTATING_WEBHOOKS, NAME)
    return str(found["webhooks"][0]["clientConfig"].get("caBundle") or "")


async def test_pods_are_rewritten_while_certificates_rotate_and_get_in_without_the_webhook(
    binaries: Binaries, tmp_path: Path
) -> None:
    async with open_workplace(binaries, tmp_path / "plane", CLOCK, controllers=False) as place:
        await place.client.create(NAMESPACES, {"metadata": {"name": TEAM}})
        spec, _ = place.replica("webhook", 1, SETTINGS)
        port = int(spec.environment["GPULOOM_WEBHOOK_PORT"])
        pods = configuration(port, "/mutate-pods", ("", "pods"))
        checks = configuration(port, "/validate", ("gpu.warp.dev", "gpuworkloads"))
        await place.client.create(MUTATING_WEBHOOKS, {"metadata": {"name": NAME}, "webhooks": [pods]})
        await place.client.create(VALIDATING_WEBHOOKS, {"metadata": {"name": NAME}, "webhooks": [checks]})
        old, new = authorities(CLOCK.now())
        write(place, (old,), old)
        await place.supervisor.start([[spec]])
        creator = Creator(place)

        async def rewritten() -> bool:
            return await creator.create() == OURS

        await place.eventually(rewritten)
        before = len(creator.schedulers)
        creating = asyncio.create_task(creator.run())
        known = await bundle(place)
        # As the setup does it: first everybody trusts the successor, later the successor signs.
        write(place, (old, new), old)

        async def trusts_both() -> bool:
            return await bundle(place) != known

        await place.eventually(trusts_both)
        # The API server reads its configurations a moment later.
        await CLOCK.sleep(3.0)
        write(place, (old, new), new)
        await CLOCK.sleep(5.0)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        during = creator.schedulers[before:]

        place.supervisor.kill("webhook-1")
        absent = await creator.create()
        await place.eventually(rewritten)
        denied = place.denied_calls()
        metadata = metadata_of(await place.client.get(PODS, "p-0", TEAM))

    assert set(during) == {OURS}
    assert len(during) > 20
    assert absent == "default-scheduler"
    assert metadata["namespace"] == TEAM
    assert denied == []
