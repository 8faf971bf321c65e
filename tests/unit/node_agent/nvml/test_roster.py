"""Indices that last, ids that are understood, and addresses as the kernel writes them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigInstance, MigPlacement
from services.node_agent.nvml.core.device_ids import device_of
from services.node_agent.nvml.inventory import Identity, numa_node_of, sysfs_name
from services.node_agent.nvml.mig import Profile, profile_name
from services.node_agent.nvml.roster import Roster, enroll


def an_identity(uuid: str, pci: str = "") -> Identity:
    return Identity(uuid, "A100-SXM4-40GB", "ampere", 40960, pci, None, "")


def indices(roster: Roster) -> dict[str, int]:
    return {uuid: member.index for uuid, member in roster.items()}


def test_a_known_gpu_keeps_its_index_when_the_driver_renumbers() -> None:
    roster = enroll(enroll({}, an_identity("a"), 0), an_identity("b"), 1)

    assert indices(enroll(roster, an_identity("b"), 0)) == {"a": 0, "b": 1}


def test_a_new_card_takes_the_index_of_the_one_it_replaced() -> None:
    roster = enroll(enroll({}, an_identity("a", "01"), 0), an_identity("b", "02"), 1)

    assert indices(enroll(roster, an_identity("c", "02"), 0)) == {"a": 0, "c": 1}


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 7), st.sampled_from(["", "1", "2", "3"])))
)
def test_no_two_gpus_ever_share_an_index(meetings: list[tuple[str, int, str]]) -> None:
    roster: Roster = {}
    for uuid, index, pci in meetings:
        roster = enroll(roster, an_identity(uuid, pci), index)

    assert len(set(indices(roster).values())) == len(roster)


def test_device_ids_of_gpus_replicas_and_slices_are_understood() -> None:
    instances = {"GPU-1": (MigInstance(MigPlacement(4, "3g.20gb"), 4, 20096, "MIG-a"),), "GPU-2": ()}

    assert device_of("GPU-2", instances) == DeviceRef("GPU-2")
    assert device_of("GPU-2::3", instances) == DeviceRef("GPU-2")
    assert device_of("MIG-a", instances) == DeviceRef("GPU-1", MigPlacement(4, "3g.20gb"))
    assert device_of("MIG-gone", instances) == DeviceRef("MIG-gone")


def test_the_kernel_writes_addresses_its_own_way() -> None:
    assert sysfs_name("00000000:3B:00.0") == "0000:3b:00.0"
    assert sysfs_name("00010000:3B:00.0") == "10000:3b:00.0"
    assert sysfs_name("../../etc/passwd") is None


def test_a_numa_node_that_the_kernel_does_not_know_is_omitted(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("-1\n")

    assert numa_node_of("00000000:3B:00.0", tmp_path) is None
    assert numa_node_of("00000000:3C:00.0", tmp_path) is None


def test_a_driver_that_tells_no_profile_names_is_helped_by_the_catalogue() -> None:
    model = load_catalog().gpu("A100-SXM4-40GB")

    assert profile_name(Profile(19, "", 1, 4864, media=False), 1, model) == "1g.5gb"
    assert profile_name(Profile(20, "", 1, 4864, media=True), 1, model) == "1g.5gb+me"
    assert profile_name(Profile(15, "", 1, 9984, media=False), 2, model) == "1g.10gb"
    assert profile_name(Profile(99, "", 6, 1, media=False), 6, model) == "profile-99"
