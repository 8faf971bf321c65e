"""Devices reach exactly the containers they were given to, on real nodes of both release lines.

The devices are harmless: copies of /dev/null and /dev/zero under other names, described by a CDI spec.
"""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.codec.allocation import decode_allocation, encode_allocation
from gpuloom.errors import UnavailableError
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of, uid_of
from gpuloom.kube.resources import EVENTS, NODES, PODS
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.node import Holder
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.runtime.clock import SystemClock, deadline
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.connection import ConnectionParts, RuntimeConnection
from services.node_agent.delivery.core.deliveries import Deliveries
from services.node_agent.delivery.core.verify import NodeFacts
from services.node_agent.delivery.known_pods import UnknownPods
from services.node_agent.delivery.metrics import DeliveryMetrics
from services.node_agent.delivery.plugin import DeliveryParts, Plugin
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.pods import NAMESPACE, a_pod, has_started, wait_started
from tests.cluster.nodes.real_node import Daemon, RealNode
from tests.cluster.test_real_nodes import a_cluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()
KIND = "nvidia.com/gpu"
MEMORY_MIB = 16_000
ZERO, NULL = "GPU-zero", "GPU-null"
SIDE = "side"
NEEDS_US = "required-plugins.noderesource.dev/container.main"
"""The runtime's own annotation for plugins without which a container must not be created."""


@dataclass(frozen=True)
class Place:
    """One real node, what it is called, and the client of the administrator."""

    node: RealNode
    client: KubeClient
    node_uid: str

    @property
    def hook_file(self) -> Path:
        return self.node.paths.home / "hooked"


@pytest.fixture(params=list(RuntimeLine))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with a_cluster(tmp_path, {"real-a": request.param}) as cluster:
        (node,) = cluster.nodes
        made = Place(node, cluster.client, uid_of(await cluster.client.get(NODES, node.name)))
        _describe_devices(made)
        yield made


async def test_a_container_gets_exactly_its_devices_and_its_neighbours_get_none(place: Place) -> None:
    async with a_plugin(place) as deliveries:
        await bind(place, "both", an_allocation(ZERO, NULL), containers=("main", SIDE))
        await bind(place, "plain", None)
        both = await wait_started(place.client, "both", CLOCK)
        plain = await wait_started(place.client, "plain", CLOCK)
        holders = await deliveries.holders()

        assert await devices_in(place, both) == ["gpu-null", "gpu-zero"]
        assert (
            len(await place.node.run_in_container(both, "busybox", "head", "-c", "4", "/dev/gpu-zero")) == 4
        )
        assert (await environment_in(place, both))["GPU_GIVEN"] == "yes"
        assert await place.node.run_in_container(both, "cat", "/etc/gpu-note") == "from the node"
        assert place.hook_file.exists()
        assert await devices_in(place, second_first(both)) == await devices_in(place, plain) == []
        assert "GPU_GIVEN" not in await environment_in(place, second_first(both))
        assert {holder.pod.name: devices_of(holder) for holder in holders} == {"both": {ZERO, NULL}}


async def test_a_forged_allocation_keeps_the_container_from_starting_and_says_why(place: Place) -> None:
    async with a_plugin(place) as deliveries:
        await bind(place, "owner", an_allocation(ZERO, milli=600))
        owner = await wait_started(place.client, "owner", CLOCK)
        forged = {
            "copied": (
                decode_allocation(annotations_of(owner)[ANNOTATION_ALLOCATION]),
                "the allocation names another pod",
            ),
            "elsewhere": (
                replace(an_allocation(NULL), node_uid="another"),
                "the allocation names another node",
            ),
            "unknown": (an_allocation("GPU-unknown"), "this node has no GPU GPU-unknown"),
            "beyond": (an_allocation(ZERO, milli=500), f"GPU {ZERO} has 1000 milli, not 1100"),
        }
        for name, (allocation, _) in forged.items():
            await bind(place, name, allocation)
        for name, (_, reason) in forged.items():
            assert f"gpuloom: {reason}" in await refusal(place.client, name)

        assert [holder.pod.name for holder in await deliveries.holders()] == ["owner"]
        await place.client.delete(PODS, "owner", NAMESPACE)
        beyond = await wait_started(place.client, "beyond", CLOCK)
        assert await devices_in(place, beyond) == ["gpu-zero"]


async def test_what_runs_is_known_again_after_a_restart_and_without_us_nobody_gets_a_device(
    place: Place,
) -> None:
    async with a_plugin(place) as before:
        await bind(place, "owner", an_allocation(ZERO))
        await wait_started(place.client, "owner", CLOCK)
        known = await before.holders()
    await bind(place, "alone", an_allocation(NULL))
    alone = await wait_started(place.client, "alone", CLOCK)
    seen_alone = await devices_in(place, alone)
    async with a_plugin(place) as after:
        restored = await after.holders()
        await bind(place, "second", an_allocation(ZERO))
        second = await refusal(place.client, "second")
        await place.node.kill(Daemon.CONTAINERD)
        await wait_known(after)
        survived = await after.holders()

    with pytest.raises(UnavailableError, match="not connected"):
        await before.holders()
    assert seen_alone == []
    assert [devices_of(holder) for holder in known] == [{ZERO}]
    assert known == restored == survived
    assert "not 2000 beside pods default/owner" in second


@pytest.mark.parametrize("place", [RuntimeLine.CONTAINERD_2], indirect=True)
async def test_a_runtime_that_checks_for_us_starts_no_pod_that_needs_us_while_we_are_away(
    place: Place,
) -> None:
    with (place.node.paths.home / "containerd.toml").open("a", encoding="utf-8") as configuration:
        configuration.write('[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\n')
    await place.node.kill(Daemon.CONTAINERD)
    await bind(place, "plain", None)
    await bind(place, "needy", an_allocation(ZERO), annotations={NEEDS_US: '["gpuloom"]'})
    refused = await refusal(place.client, "needy")
    plain = await wait_started(place.client, "plain", CLOCK)
    async with a_plugin(place):
        needy = await wait_started(place.client, "needy", CLOCK)

        assert 'required plugin "gpuloom" not present' in refused
        assert (await devices_in(place, needy), await devices_in(place, plain)) == (["gpu-zero"], [])


async def test_a_container_that_ends_by_itself_frees_its_devices(place: Place) -> None:
    async with a_plugin(place) as deliveries:
        await bind(place, "brief", an_allocation(ZERO), command=("sleep", "2"))
        async with deadline(CLOCK, 30.0):
            while not await deliveries.holders():
                await CLOCK.sleep(0.1)
            while await deliveries.holders():
                await CLOCK.sleep(0.1)

        assert (await place.client.get(PODS, "brief", NAMESPACE))["metadata"]["name"] == "brief"
        await bind(place, "next", an_allocation(ZERO))
        following = await wait_started(place.client, "next", CLOCK)
        assert await devices_in(place, following) == ["gpu-zero"]


async def test_the_control_group_opens_a_delivered_device_and_no_other(place: Place) -> None:
    """Its driver is one that no container may use by default, unlike /dev/null and /dev/zero."""
    driver = _a_driver_that_is_closed_by_default()
    os.unlink(place.node.paths.home / ZERO.lower())
    os.mknod(place.node.paths.home / ZERO.lower(), stat.S_IFCHR | 0o666, driver)
    numbers = (str(os.major(driver)), str(os.minor(driver)))
    async with a_plugin(place):
        await bind(place, "owner", an_allocation(ZERO))
        await bind(place, "plain", None)
        owner = await wait_started(place.client, "owner", CLOCK)
        plain = await wait_started(place.client, "plain", CLOCK)
        await place.node.run_in_container(plain, "busybox", "mknod", "/tmp/own", "c", *numbers)

        assert (
            await place.node.run_in_container(owner, "sh", "-c", "exec 3<>/dev/gpu-zero && echo open")
            == "open\n"
        )
        with pytest.raises(UnavailableError, match="not permitted"):
            await place.node.run_in_container(plain, "sh", "-c", "exec 3<>/tmp/own && echo open")


@asynccontextmanager
async def a_plugin(place: Place) -> AsyncIterator[Deliveries]:
    """Connected and synchronised, with two cards in what the agent knows about the node."""
    folders = CdiFolders([place.node.paths.static_cdi, place.node.paths.cdi])
    folders.scan()
    cards = tuple(
        Gpu(uuid, index, "T4", "turing", MEMORY_MIB, GpuHealth.HEALTHY)
        for index, uuid in enumerate((ZERO, NULL))
    )
    metrics, deliveries = DeliveryMetrics(CollectorRegistry()), Deliveries()
    facts = NodeFacts(place.node_uid, cards)
    plugin = Plugin(DeliveryParts(lambda: facts, UnknownPods(), folders, KIND, metrics), deliveries)
    parts = ConnectionParts(place.node.paths.nri_socket, CLOCK, metrics, lambda connected: None)
    running = asyncio.create_task(RuntimeConnection(parts, plugin, deliveries).run())
    try:
        await wait_known(deliveries)
        yield deliveries
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def wait_known(deliveries: Deliveries) -> None:
    async with deadline(CLOCK, 30.0):
        while deliveries.unknown_reason:
            await CLOCK.sleep(0.05)


def an_allocation(*uuids: str, milli: int = 1000) -> Allocation:
    """Pod and node are filled in when it is bound."""
    memory_mib = MEMORY_MIB * milli // 1000
    return Allocation(
        pod_uid="",
        node_uid="",
        container="main",
        advisory=False,
        devices=tuple(AllocatedDevice(DeviceRef(uuid), milli, memory_mib) for uuid in uuids),
    )


async def bind(
    place: Place,
    name: str,
    allocation: Allocation | None,
    containers: tuple[str, ...] = ("main",),
    command: tuple[str, ...] = (),
    annotations: Mapping[str, str] | None = None,
) -> None:
    """As the extender does it: one Binding that carries the allocation. A `command` runs once."""
    manifest = a_pod(name)
    (main,) = manifest["spec"]["containers"]
    if command:
        manifest["spec"]["restartPolicy"] = "Never"
        main["command"] = list(command)
    manifest["spec"]["containers"] = [{**main, "name": container} for container in containers]
    pod = await place.client.create(PODS, manifest)
    carried = dict(annotations or {})
    if allocation is not None:
        told = replace(
            allocation,
            pod_uid=allocation.pod_uid or uid_of(pod),
            node_uid=allocation.node_uid or place.node_uid,
        )
        carried[ANNOTATION_ALLOCATION] = encode_allocation(told)
    binding = PodBinding(
        NAMESPACE, name, place.node.name, uid_of(pod), resource_version_of(pod), annotations=carried
    )
    await place.client.bind(binding)


async def refusal(client: KubeClient, name: str) -> str:
    """What the pod's Event, as the API has it, says about why its container is not created."""
    async with deadline(CLOCK, 60.0):
        while True:
            pod = await client.get(PODS, name, NAMESPACE)
            assert not has_started(pod)
            said = [event for event in await failures_of(client, name) if "gpuloom" in event]
            if said:
                return said[-1]
            await CLOCK.sleep(0.2)


async def failures_of(client: KubeClient, name: str) -> list[str]:
    listing = await client.list(EVENTS, Selection(NAMESPACE))
    return [
        event.get("message", "")
        for event in listing.items
        if event.get("reason") == "Failed" and event["involvedObject"]["name"] == name
    ]


def annotations_of(pod: JsonObject) -> Mapping[str, str]:
    return metadata_of(pod).get("annotations") or {}


def second_first(pod: JsonObject) -> JsonObject:
    spec: Mapping[str, Any] = pod["spec"]
    return {**pod, "metadata": metadata_of(pod), "spec": {**spec, "containers": spec["containers"][::-1]}}


async def devices_in(place: Place, pod: JsonObject) -> list[str]:
    """Of the test's devices, those that the running container sees."""
    listed = await place.node.run_in_container(pod, "ls", "/dev")
    return sorted(name for name in listed.split() if name.startswith("gpu-"))


async def environment_in(place: Place, pod: JsonObject) -> dict[str, str]:
    said = await place.node.run_in_container(pod, "env")
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def _a_driver_that_is_closed_by_default() -> int:
    """Opening one of these does nothing until it is asked for more."""
    for path in ("/dev/fuse", "/dev/net/tun"):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            continue
        return os.stat(path).st_rdev
    pytest.skip("this machine has neither /dev/fuse nor /dev/net/tun")


def devices_of(holder: Holder) -> set[str]:
    return {device.gpu_uuid for device in holder.devices}


def _describe_devices(place: Place) -> None:
    """One spec in each folder, one in each format; numbers are left for the agent to find out."""
    home = place.node.paths.home
    (home / "note").write_text("from the node", encoding="utf-8")
    for folder, uuid, minor in ((place.node.paths.static_cdi, ZERO, 5), (place.node.paths.cdi, NULL, 3)):
        name = uuid.lower()
        os.mknod(home / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        nodes = [{"path": f"/dev/{name}", "hostPath": str(home / name)}]
        spec = {
            "cdiVersion": "0.6.0",
            "kind": KIND,
            "devices": [{"name": uuid, "containerEdits": {"deviceNodes": nodes}}],
            "containerEdits": {
                "env": ["GPU_GIVEN=yes"],
                "mounts": [
                    {
                        "hostPath": str(home / "note"),
                        "containerPath": "/etc/gpu-note",
                        "options": ["ro", "bind"],
                    }
                ],
                "hooks": [
                    {
                        "hookName": "createRuntime",
                        "path": "/usr/bin/touch",
                        "args": ["touch", str(place.hook_file)],
                    }
                ],
            },
        }
        # JSON is YAML too.
        suffix = "json" if uuid == ZERO else "yaml"
        (folder / f"{name}.{suffix}").write_text(json.dumps(spec), encoding="utf-8")
