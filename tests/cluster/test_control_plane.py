import asyncio
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from gpuloom.errors import ConflictError, InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.kube.access import KubeAccess, ServerTrust
from gpuloom.kube.client import KubeClient
from gpuloom.kube.credentials import FileText
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import CONFIGMAPS, NAMESPACES, NODES, Resource
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.supervisor import StartError
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlaneOptions, open_control_plane
from tests.cluster.port_use import refuse_used_ports
from tests.cluster.processes import Ports
from tests.cluster.shared import SharedControlPlane, account_of

pytestmark = pytest.mark.real

CLOCK = SystemClock()
ROOT = Path(__file__).parents[2]
SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False)


async def who_am_i(client: KubeClient) -> tuple[str, set[str]]:
    answer = await client.create(SELF_REVIEWS, {"metadata": {}})
    said = answer["status"]["userInfo"]
    return said["username"], set(said["groups"])


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_two_control_planes_run_side_by_side_and_know_nothing_of_each_other(
    binaries: Binaries, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        first, second = await asyncio.gather(
            *(
                stack.enter_async_context(open_control_plane(binaries, tmp_path / name, CLOCK))
                for name in ("first", "second")
            )
        )
        async with first.client() as one, second.client() as other:
            await one.create(NAMESPACES, {"metadata": {"name": "only-here"}})

            with pytest.raises(NotFoundError):
                await other.get(NAMESPACES, "only-here")


async def test_leaving_ends_every_process_and_frees_every_port(binaries: Binaries, tmp_path: Path) -> None:
    options = ControlPlaneOptions(controller_manager=True)

    async with open_control_plane(binaries, tmp_path, CLOCK, options) as plane:
        pids = [status.pid for status in plane.supervisor.statuses() if status.pid is not None]
        ports = plane.ports

    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    refuse_used_ports([ports.etcd, ports.etcd_peers, ports.api, ports.controller_manager])


async def test_a_used_port_is_named_with_its_owner_and_works_once_it_is_free(
    binaries: Binaries, tmp_path: Path
) -> None:
    # Not from the range of outgoing connections, one of which could take a port in between.
    ports = Ports(*free_ports(4, Random()))
    options = ControlPlaneOptions(ports=ports)
    said = rf"port {ports.etcd} .* process {os.getpid()} \("

    with socket.create_server((HOST, ports.etcd)), pytest.raises(ConflictError, match=said):
        async with open_control_plane(binaries, tmp_path, CLOCK, options):
            pass

    async with open_control_plane(binaries, tmp_path, CLOCK, options) as plane, plane.client() as client:
        assert await client.get(NAMESPACES, "default")


async def test_a_program_that_does_not_come_up_is_one_line_with_the_end_of_its_log(
    binaries: Binaries, tmp_path: Path
) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    for program in binaries.folder.iterdir():
        (folder / program.name).symlink_to(program)
    (folder / "kube-apiserver").unlink()
    (folder / "kube-apiserver").write_text("#!/bin/sh\necho 'no way to serve'\nexit 7\n")
    (folder / "kube-apiserver").chmod(0o755)

    with pytest.raises(StartError) as failed:
        async with open_control_plane(Binaries(folder), tmp_path / "plane", CLOCK):
            pass

    text = str(failed.value)
    assert "kube-apiserver could not be started: it ended with exit code 7" in text
    assert text.endswith("no way to serve")
    assert "\n" not in text


async def test_a_killed_run_leaves_nothing_and_the_next_one_starts_in_its_place(
    binaries: Binaries, tmp_path: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster", str(tmp_path / "plane")),
        cwd=ROOT,
        env={**os.environ, "KUBE_ASSETS": str(binaries.folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"export KUBECONFIG=")
    with pytest.raises(ConflictError, match="another control plane runs in"):
        async with open_control_plane(binaries, tmp_path / "plane", CLOCK):
            pass

    process.send_signal(signal.SIGKILL)
    await process.wait()

    async with deadline(CLOCK, 30.0):
        while not await starts(binaries, tmp_path / "plane"):
            await CLOCK.sleep(0.1)


async def starts(binaries: Binaries, directory: Path) -> bool:
    try:
        async with open_control_plane(binaries, directory, CLOCK):
            return True
    except ConflictError:
        return False


async def test_a_directory_with_other_things_in_it_is_left_alone(binaries: Binaries, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")

    with pytest.raises(InvalidRequestError, match="not empty"):
        async with open_control_plane(binaries, tmp_path, CLOCK):
            pass

    assert os.listdir(tmp_path) == [thesis.name]


async def test_users_are_who_their_certificate_or_token_says(
    shared_control_plane: SharedControlPlane,
) -> None:
    plane = shared_control_plane.plane
    node = plane.kubeconfig_for("system:node:n1", ("system:nodes",))
    account = await plane.service_account_kubeconfig(*account_of("discovery"))

    async with plane.client(node) as client:
        assert await who_am_i(client) == ("system:node:n1", {"system:nodes", "system:authenticated"})
    async with plane.client(account) as client:
        user, groups = await who_am_i(client)

    assert user == "system:serviceaccount:gpuloom-system:gpuloom-discovery"
    assert "system:serviceaccounts:gpuloom-system" in groups


async def test_nobody_is_anonymous_and_a_user_without_rules_may_do_nothing(
    shared_control_plane: SharedControlPlane,
) -> None:
    plane = shared_control_plane.plane
    trust = ServerTrust(FileText(plane.authority_file, CLOCK))
    async with KubeClient(KubeAccess(plane.url, trust=trust), CLOCK) as anonymous:
        with pytest.raises(NotAllowedError, match="401"):
            await anonymous.list(NODES)
    async with plane.client(plane.kubeconfig_for("nobody")) as nobody:
        with pytest.raises(NotAllowedError, match="403"):
            await nobody.list(NODES)


async def test_the_controllers_run_when_asked_for(binaries: Binaries, tmp_path: Path) -> None:
    options = ControlPlaneOptions(controller_manager=True)

    async with open_control_plane(binaries, tmp_path, CLOCK, options) as plane, plane.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "made"}})
        async with deadline(CLOCK, 20.0):
            while not (await client.list(CONFIGMAPS, Selection("made"))).items:
                await CLOCK.sleep(0.1)
