"""`gpuloom doctor` on the installed cluster, run as by an administrator: healthy, and with each fault planted
one after the other.

A fault is planted again before every look, because the product and Kubernetes mend some by themselves.
"""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpuloom.cli.doctor.reading import DEFINITIONS
from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import (
    ADMISSION_POLICY_BINDINGS,
    LEASES,
    MUTATING_WEBHOOKS,
    SECRETS,
    Resource,
)
from gpuloom.rpc.authority import issue, new_authority, read_pair
from gpuloom.runtime.clock import Clock, deadline
from tests.cluster.install.installation import NAMESPACE, NODES, RELEASE, Installation

CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
NOBODY_ANSWERS = "http://127.0.0.1:1"
# Of what a user has to give the address.
BY_KUBERNETES = frozenset({"trusted capacity", "delivery", "prometheus"})
BY_KUBE = frozenset({"prometheus"})
_PATIENCE_S = 180.0
_LOOK_S = 0.5

Step = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Fault:
    """What the doctor shall say of it, and how it is planted, again and again, and mended."""

    check: str
    text: str
    plant: Step
    mend: Step
    verdict: str = "failed"
    options: tuple[str, ...] = ()


async def check_the_doctor(installation: Installation, clock: Clock) -> int:
    """How many faults were planted."""
    count = 0
    await wait_healthy(installation, clock, BY_KUBE, "--kube", "doctor")
    async for fault in faults(installation, clock):
        try:
            code, told = await wait_told(installation, clock, fault)
        finally:
            await fault.mend()
        assert code == (1 if fault.verdict == "failed" else 0)
        assert told["remedy"]
        await wait_healthy(installation, clock, BY_KUBERNETES, "doctor")
        count += 1
    await wait_healthy(installation, clock, BY_KUBE, "--kube", "doctor")
    return count


async def wait_healthy(
    installation: Installation, clock: Clock, skipped: frozenset[str], *command: str
) -> None:
    """Every check is ok but those that could not be made. Raise TimeoutError with what is not."""
    wrong: object = None
    try:
        async with deadline(clock, _PATIENCE_S):
            while True:
                code, findings, complaint = await ask(installation, *command)
                verdicts = {one["check"]: one["verdict"] for one in findings}
                wrong = complaint or [one for one in findings if one["verdict"] not in ("ok", "skipped")]
                left_out = {check for check, verdict in verdicts.items() if verdict == "skipped"}
                if code == 0 and not wrong and left_out == skipped:
                    return
                wrong = wrong or f"skipped: {sorted(left_out)}, exit code {code}"
                await clock.sleep(_LOOK_S)
    except TimeoutError:
        raise TimeoutError(f"gpuloom {' '.join(command)} does not call it healthy: {wrong}") from None


async def wait_told(installation: Installation, clock: Clock, fault: Fault) -> tuple[int, JsonObject]:
    """The exit code and the finding about the fault. Raise TimeoutError with what is told instead."""
    findings: Sequence[JsonObject] = ()
    try:
        async with deadline(clock, _PATIENCE_S):
            while True:
                await fault.plant()
                code, findings, _ = await ask(installation, "doctor", *fault.options)
                for one in findings:
                    if (one["check"], one["verdict"]) == (fault.check, fault.verdict) and fault.text in one[
                        "text"
                    ]:
                        return code, one
                await clock.sleep(_LOOK_S)
    except TimeoutError:
        wrong = [one for one in findings if one["verdict"] != "ok"]
        raise TimeoutError(f"the doctor does not say {fault.check}: {fault.text}, but {wrong}") from None


async def ask(installation: Installation, *command: str) -> tuple[int, Sequence[JsonObject], str]:
    """Its exit code, its findings, and what it complained about if it had none."""
    plane, folder = installation.cluster.plane, installation.values.parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULOOM_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuloom.cli.main", *command, "-o", "json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Elsewhere than where a `gpuloom run` of this machine would be found.
        cwd=folder,
        env={
            **kept,
            "HOME": str(folder),
            "KUBECONFIG": str(plane.admin_kubeconfig),
            "PATH": f"{plane.binaries.folder}{os.pathsep}{kept.get('PATH', '')}",
        },
    )
    try:
        output, complaints = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    said = complaints.decode(errors="replace").strip()
    if not output:
        return int(process.returncode or 0), (), said or "it said nothing"
    return int(process.returncode or 0), json.loads(output)["findings"], ""


async def faults(installation: Installation, clock: Clock) -> AsyncIterator[Fault]:
    client, kubectl = installation.cluster.client, installation.cluster.kubectl
    yield await an_expired_certificate(installation, clock)
    # Afterwards its pod is a new one, which has read the certificate that is there again.
    yield Fault(
        "service console",
        "has no pod",
        lambda: kubectl("scale", "-n", NAMESPACE, f"deployment/{RELEASE}-console", "--replicas=0"),
        lambda: kubectl("scale", "-n", NAMESPACE, f"deployment/{RELEASE}-console", "--replicas=1"),
    )
    # The console asks for nothing unless somebody opens it, so nothing is refused to it meanwhile.
    yield await a_missing_object(
        installation,
        clock,
        ("rights", "console (system:serviceaccount:gpuloom-system:gpuloom-console) may not create"),
        (CLUSTER_ROLE_BINDINGS, f"{RELEASE}:console"),
    )
    yield await a_missing_object(
        installation,
        clock,
        ("admission policies", "no bound policy allocation-annotations"),
        (ADMISSION_POLICY_BINDINGS, f"{RELEASE}-allocation-annotations"),
    )
    inference = "aiinferenceautoscalerpolicies.kubeai.io"
    yield await a_missing_object(
        installation,
        clock,
        ("custom resources", f"not installed or not established: {inference}"),
        (DEFINITIONS, inference),
    )
    yield await an_old_definition(installation)
    yield await a_foreign_authority(installation, clock)
    yield Fault(
        "node agents",
        f"1 of 2 GPU nodes have no ready agent: {NODES[1]}",
        lambda: kubectl("label", "node", NODES[1], "gpuloom.dev/gpu-"),
        lambda: kubectl("label", "node", NODES[1], "gpuloom.dev/gpu=true"),
    )
    ahead = (clock.now() + timedelta(hours=1)).isoformat()
    lease = {"metadata": {"name": "ahead", "namespace": "kube-node-lease"}, "spec": {"renewTime": ahead}}
    yield Fault(
        "clocks",
        "ahead of the API server: ahead",
        lambda: unless_there(client.create(LEASES, lease)),
        lambda: client.delete(LEASES, "ahead", "kube-node-lease"),
        verdict="warning",
    )
    yield Fault("prometheus", NOBODY_ANSWERS, nothing, nothing, options=("--prometheus", NOBODY_ANSWERS))


async def a_missing_object(
    installation: Installation, clock: Clock, told: tuple[str, str], which: tuple[Resource, str]
) -> Fault:
    client, (resource, name) = installation.cluster.client, which
    kept = await client.get(resource, name)

    async def plant() -> None:
        with suppress(NotFoundError):
            await client.delete(resource, name)

    async def mend() -> None:
        async with deadline(clock, _PATIENCE_S):
            while True:
                # A definition is there until its objects are gone.
                with suppress(ConflictError):
                    await client.create(resource, without_the_servers_part(kept))
                    return
                await clock.sleep(_LOOK_S)

    return Fault(*told, plant, mend)


async def an_expired_certificate(installation: Installation, clock: Clock) -> Fault:
    client, name = installation.cluster.client, f"{RELEASE}-console-tls"
    authority = (await client.get(SECRETS, f"{RELEASE}-ca", NAMESPACE))["data"]
    signer = read_pair(*(base64.b64decode(authority[entry]) for entry in ("tls.crt", "tls.key")))
    assert signer is not None
    expired = issue(signer, "console", clock.now() - timedelta(days=91), 90)
    planted = {"tls.crt": encoded(expired.certificate_pem()), "tls.key": encoded(expired.key_pem())}
    kept = (await client.get(SECRETS, name, NAMESPACE))["data"]
    return Fault(
        "certificates",
        f"{NAMESPACE}/{name} ended",
        lambda: client.patch(SECRETS, name, NAMESPACE, {"data": planted}),
        lambda: client.patch(SECRETS, name, NAMESPACE, {"data": kept}),
    )


async def an_old_definition(installation: Installation) -> Fault:
    client, name = installation.cluster.client, "costbudgets.gpu-autoscaler.io"
    field = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/forecast"
    (version,) = (await client.get(DEFINITIONS, name))["spec"]["versions"]
    kept = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["forecast"]
    add = {"op": "add", "path": field, "value": kept}
    return Fault(
        "custom resources",
        f"{name} is of an older version: it drops v1alpha1.status.forecast",
        # Removed whether it is there or not.
        lambda: client.json_patch(DEFINITIONS, name, None, [add, {"op": "remove", "path": field}]),
        lambda: client.json_patch(DEFINITIONS, name, None, [add]),
    )


async def a_foreign_authority(installation: Installation, clock: Clock) -> Fault:
    client, name = installation.cluster.client, f"{RELEASE}-webhook"
    kept = (await client.get(MUTATING_WEBHOOKS, name))["webhooks"][0]["clientConfig"]["caBundle"]
    foreign = encoded(new_authority("somebody else", clock.now()).certificate_pem())

    def write(bundle: str) -> Awaitable[object]:
        operation = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}
        return client.json_patch(MUTATING_WEBHOOKS, name, None, [operation])

    return Fault(
        "webhooks",
        f"MutatingWebhookConfiguration {name} trusts another authority",
        lambda: write(foreign),
        lambda: write(kept),
    )


async def unless_there(creation: Awaitable[object]) -> None:
    with suppress(ConflictError):
        await creation


async def nothing() -> None:
    pass


def without_the_servers_part(obj: JsonObject) -> JsonObject:
    metadata: dict[str, Any] = metadata_of(obj)
    kept = {name: metadata[name] for name in ("name", "labels", "annotations") if name in metadata}
    return {**{name: part for name, part in obj.items() if name != "status"}, "metadata": kept}


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
