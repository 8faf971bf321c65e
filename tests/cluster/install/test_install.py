"""A real installation: every pod is Ready, a GPU pod gets exactly its card; upgrade, rollback, uninstall."""

import re
import sys
from pathlib import Path

import pytest

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NAMESPACES, PODS, Resource
from gpuloom.roster import ROSTER, Kind
from gpuloom.runtime.clock import SystemClock, deadline
from tests.cluster.install.doctor import check_the_doctor
from tests.cluster.install.images import NEWER, OLDER, build_images
from tests.cluster.install.installation import (
    AGENTS,
    NAMESPACE,
    RELEASE,
    WAIT,
    Installation,
    an_installation,
    given_to,
)
from tests.cluster.install.load import Load, under_load
from tests.cluster.nodes.pods import NAMESPACE as USERS
from tests.cluster.nodes.pods import a_pod, wait_started
from tests.cluster.rights import rights_are_taken_away
from tests.nvml.library import compile_library

# Only against a hang: images may have to be built from nothing, beside other tests.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

CLOCK = SystemClock()
LONGEST_GAP_S = 10.0
_PATIENCE_S = 120.0
_LOOK_S = 0.5
DEPLOYMENTS = [row.extra for row in ROSTER if row.kind is not Kind.DAEMON]
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
# A standby answers 503; any other answer that is none is a leader's.
ERROR_OF_A_LEADER = re.compile(r"extender.*code (?!503)\d{3}")
WHO_AM_I = """
import os
try:
    open('/app/written', 'w')
except OSError as error:
    print(os.getuid(), os.getgid(), error.errno)
"""
READ_ONLY = 30


async def test_an_installation_lives_through_upgrade_rollback_and_uninstall(tmp_path: Path) -> None:
    archive = tmp_path / "images.tar"
    build_images(archive)
    library = compile_library(tmp_path / "library")
    async with an_installation(tmp_path, archive, library, CLOCK) as installation:
        began_s = CLOCK.monotonic()
        await installation.upgrade(OLDER)
        say(f"installed in {CLOCK.monotonic() - began_s:.0f} s")
        await check_that_pods_are_confined(installation)
        trained = await check_that_a_pod_gets_exactly_its_card(installation)
        began_s = CLOCK.monotonic()
        faults = await check_the_doctor(installation, CLOCK)
        say(f"doctor: healthy, and {faults} faults told and mended in {CLOCK.monotonic() - began_s:.0f} s")
        assert await as_it_was(installation, trained)

        async with under_load(installation, CLOCK) as load:
            await load.until_more_are_bound(5)
            began_s = CLOCK.monotonic()
            await installation.upgrade(NEWER)
            say(f"upgraded in {CLOCK.monotonic() - began_s:.0f} s, {load.bound()} pods bound so far")
            assert await images(installation) == {NEWER}
            await load.until_more_are_bound(5)
            began_s = CLOCK.monotonic()
            await installation.run_helm("rollback", RELEASE, "1", "--namespace", NAMESPACE, *WAIT)
            say(f"rolled back in {CLOCK.monotonic() - began_s:.0f} s, {load.bound()} pods bound so far")
            assert await images(installation) == {OLDER}
            await load.until_more_are_bound(5)
        check_the_load(load)
        assert await as_it_was(installation, trained)

        rights_are_taken_away()
        await installation.run_helm("uninstall", RELEASE, "--namespace", NAMESPACE, *WAIT)
        assert await as_it_was(installation, trained)
        await wait_until_no_pod_stays(installation)
        definitions = (await installation.cluster.client.list(DEFINITIONS)).items
        assert len([one for one in definitions if "gpu" in one["metadata"]["name"]]) >= 8


async def check_that_pods_are_confined(installation: Installation) -> None:
    """Every pod is Ready, in a restricted namespace, as nobody and on a root that can't be written."""
    namespace = await installation.cluster.client.get(NAMESPACES, NAMESPACE)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    await wait_until_every_pod_is_ready(installation)
    for name in DEPLOYMENTS:
        said = await installation.cluster.kubectl(
            *("exec", "--namespace", NAMESPACE, f"deployment/{RELEASE}-{name}"),
            *("--", "python", "-c", WHO_AM_I),
        )
        assert said.split() == ["65532", "65532", str(READ_ONLY)]


async def wait_until_every_pod_is_ready(installation: Installation) -> None:
    """Helm waits neither for Jobs nor for the last agent. Raise TimeoutError."""
    waiting: list[str] = ["nothing is there"]
    try:
        async with deadline(CLOCK, _PATIENCE_S):
            while waiting:
                pods = [*await installation.pods(NAMESPACE), *await installation.pods(AGENTS)]
                over = [pod for pod in pods if pod["status"].get("phase") == "Succeeded"]
                waiting = [pod["metadata"]["name"] for pod in pods if pod not in over and not is_ready(pod)]
                agents = [pod for pod in pods if "node-agent" in pod["metadata"]["name"]]
                waiting += ["an agent"] * (2 - len(agents))
                await CLOCK.sleep(_LOOK_S if waiting else 0)
    except TimeoutError:
        raise TimeoutError(f"not ready: {waiting}") from None


async def wait_until_no_pod_stays(installation: Installation) -> None:
    """Helm waits for what it made itself; pods are deleted a little later. Raise TimeoutError."""
    async with deadline(CLOCK, _PATIENCE_S):
        while [pod for pod in await installation.pods(NAMESPACE) if stays(pod)]:
            await CLOCK.sleep(_LOOK_S)


async def check_that_a_pod_gets_exactly_its_card(installation: Installation) -> JsonObject:
    client = installation.cluster.client
    await client.create(PODS, a_pod("train", milli=1000))
    pod = await wait_started(client, "train", CLOCK)

    assert len(given_to(pod)) == 1
    assert await installation.seen_inside(pod) == given_to(pod)
    return pod


def check_the_load(load: Load) -> None:
    """Every pod was bound, once, and soon; every container saw its cards; no leader that served erred."""
    say(f"{len(load.lives)} pods, longest wait for a node {load.longest_wait_s():.1f} s")
    say(*sorted(load.refusals))
    assert all(len(life.nodes) <= 1 for life in load.lives.values())
    assert load.longest_wait_s() <= LONGEST_GAP_S
    looked_at = [life for life in load.lives.values() if life.seen is not None]
    assert len(looked_at) > 10
    assert all(life.seen == life.given for life in looked_at)
    assert not [text for text in load.refusals if ERROR_OF_A_LEADER.search(text)]


async def as_it_was(installation: Installation, pod: JsonObject) -> bool:
    """The same container runs, and has its card."""
    now = await installation.cluster.client.get(PODS, "train", USERS)
    return container_id(now) == container_id(pod) and await installation.seen_inside(now) == given_to(pod)


async def images(installation: Installation) -> set[str]:
    """Tags of the images that our pods run now; kube-scheduler's is not ours."""
    pods = [*await installation.pods(NAMESPACE), *await installation.pods(AGENTS)]
    running = [
        pod
        for pod in pods
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    named = {container["image"] for pod in running for container in pod["spec"]["containers"]}
    return {image.rpartition(":")[2] for image in named if image.startswith("gpuloom/")}


def say(*lines: str) -> None:
    """Seen with -s: what was measured."""
    sys.stdout.write("".join(f"\n{line}" for line in lines))


def is_ready(pod: JsonObject) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def stays(pod: JsonObject) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def container_id(pod: JsonObject) -> str:
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"])
