"""The pods of a node by its control groups, from folders that look like /sys/fs/cgroup."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.codec.device import MAX_PODS_PER_NODE
from gpuloom.errors import UnavailableError
from services.node_agent.attribution.host_cgroups import HostCgroups
from tests.effort import examples
from tests.unit.node_agent.attribution.test_cgroup import HASH, ID, OTHER, UID, UIDS, folders, slices

BOOT = "0d5b9a4c-1111-2222-3333-444444444444"


class Sys:
    """A host's control groups in version 1 or 2, beside its boot id."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder / "cgroup"
        self.boot_id_file = folder / "boot_id"
        self.version = version
        self.folder.mkdir()
        self.boot_id_file.write_text(f"{BOOT}\n")
        if version == 2:
            (self.folder / "cgroup.controllers").write_text("cpu memory\n")
        self.make("/init.scope", "/system.slice/containerd.service", "/user.slice/user-0.slice")

    def make(self, *paths: str) -> None:
        tops = [""] if self.version == 2 else ["/memory", "/systemd"]
        for top in tops:
            for path in paths:
                (self.folder / f"{top}{path}".lstrip("/")).mkdir(parents=True, exist_ok=True)

    async def pods(self) -> tuple[str, ...]:
        presence = await HostCgroups(self.folder, self.boot_id_file).presence()
        assert (presence.unknown_reason, presence.boot_id) == ("", BOOT)
        assert presence.listed_at_ms > 0
        return presence.pod_uids


FORMS = {
    "cgroupfs": folders(UID),
    "cgroupfs, guaranteed": folders(UID, ""),
    "systemd": slices(UID),
    "systemd, guaranteed": slices(UID, ""),
    "a root of its own": f"/our-node-1{folders(UID)}",
    "a root of its own, systemd": f"/kubelet.slice{slices(UID, prefix='kubelet-')}",
    "a node in a container": f"/docker/{ID}/kubelet{folders(UID)}",
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("path", FORMS.values(), ids=FORMS)
async def test_a_pod_is_there_while_its_control_group_is(tmp_path: Path, path: str, version: int) -> None:
    host = Sys(tmp_path, version)
    host.make(f"{path}/{ID}", f"{path}/crio-{ID}.scope/init.scope")

    assert await host.pods() == (UID,)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_pod_without_any_container_is_there_and_a_node_without_pods_is_a_node(
    tmp_path: Path, version: int
) -> None:
    host = Sys(tmp_path, version)
    host.make("/kubepods/burstable", "/kubepods/besteffort")

    empty = await host.pods()
    host.make(folders(HASH, "besteffort"))

    assert (empty, await host.pods()) == ((), (HASH,))


async def test_pods_of_every_kubelet_on_the_machine_are_there(tmp_path: Path) -> None:
    """Those of another node do no harm; one that is not found might be taken for gone."""
    host = Sys(tmp_path, 2)
    host.make(folders(UID), f"/kubelet.slice{slices(OTHER, prefix='kubelet-')}")

    assert await host.pods() == tuple(sorted((UID, OTHER)))


@pytest.mark.parametrize(
    "made",
    [
        f"{folders(UID)}/{ID}{folders(OTHER)}",
        f"{folders(UID)}/pod{OTHER}",
        f"/user.slice/user-1000.slice{folders(OTHER)}",
        f"/kubepods/burstable/podx{OTHER}",
        f"/kubepods/strange/pod{OTHER}",
    ],
)
async def test_what_no_kubelet_made_is_no_pod(tmp_path: Path, made: str) -> None:
    host = Sys(tmp_path, 2)
    host.make(folders(UID), made)

    assert await host.pods() == (UID,)


@pytest.mark.parametrize("version", [1, 2])
async def test_the_agents_own_view_of_its_container_shows_no_pods_and_proves_nothing(
    tmp_path: Path, version: int
) -> None:
    host = Sys(tmp_path, version)

    with pytest.raises(UnavailableError, match="GPULOOM_AGENT_CGROUP_DIR"):
        await host.pods()


async def test_a_folder_that_is_not_there_proves_nothing(tmp_path: Path) -> None:
    host = Sys(tmp_path, 2)

    with pytest.raises(UnavailableError, match="GPULOOM_AGENT_CGROUP_DIR"):
        await HostCgroups(tmp_path / "nowhere", host.boot_id_file).presence()


async def test_more_pods_than_a_node_can_run_prove_nothing(tmp_path: Path) -> None:
    host = Sys(tmp_path, 2)
    host.make(*(f"/kubepods/pod{number:032x}" for number in range(MAX_PODS_PER_NODE + 1)))

    with pytest.raises(UnavailableError, match="more than a node can run"):
        await host.pods()


PLACED = st.tuples(UIDS, st.sampled_from(["", "burstable", "besteffort"]), st.booleans())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PLACED, min_size=1, max_size=6), st.sampled_from([1, 2]))
async def test_what_a_kubelet_makes_is_found_and_nothing_else(
    pods: list[tuple[str, str, bool]], version: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = Sys(Path(folder), version)
        for uid, quality, systemd in pods:
            host.make(f"{slices(uid, quality) if systemd else folders(uid, quality)}/{ID}")

        found = await host.pods()

    assert found == tuple(sorted({uid for uid, _, _ in pods}))
