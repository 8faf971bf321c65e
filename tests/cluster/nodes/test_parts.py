"""The files that make a node: its image, its configuration, and where its packages come from."""

import hashlib
import json
import tarfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.allocation import encode_allocation
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef
from tests.cluster.binaries import Binaries
from tests.cluster.nodes.configuration import RuntimeLine, containerd_configuration, to_toml
from tests.cluster.nodes.image import write_image
from tests.cluster.nodes.packages import Mirror, find_mirror
from tests.cluster.nodes.programs import require_programs
from tests.cluster.nodes.recorder import visible_devices_of

_keys = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)
_plain = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.text('abc/"\\ \n.é'), st.lists(st.text("ab"))
)
_tables = st.recursive(
    st.dictionaries(_keys, _plain), lambda inner: st.dictionaries(_keys, _plain | inner), max_leaves=8
)


@given(_tables)
def test_toml_reads_back_as_it_was(document: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(document)) == document


@pytest.mark.parametrize("runtime", list(RuntimeLine))
def test_containerd_listens_to_nri_plugins_on_either_line(runtime: RuntimeLine) -> None:
    config = tomllib.loads(containerd_configuration(runtime, Path("/home/of/node")))

    assert config["plugins"]["io.containerd.nri.v1.nri"]["disable"] is False


def test_the_image_is_its_layer_and_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"program")

    write_image(busybox, tmp_path / "one.tar")
    write_image(busybox, tmp_path / "two.tar")

    with tarfile.open(tmp_path / "one.tar") as archive:
        content = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        files = {name: file.read() for name, file in content.items() if file is not None}
    digest = hashlib.sha256(files["layer.tar"]).hexdigest()
    assert json.loads(files["config.json"])["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


@pytest.mark.parametrize(
    ("text", "mirror"),
    [
        (
            "Types: deb\nURIs: http://mirror.example.com/debian\nSuites: stable\nSigned-By: /keys/a.gpg\n",
            Mirror("http://mirror.example.com/debian", "/keys/a.gpg"),
        ),
        (
            "deb [arch=amd64 signed-by=/keys/b.gpg] https://example.com/debian/ stable main\n",
            Mirror("https://example.com/debian/", "/keys/b.gpg"),
        ),
        ("deb http://example.com/debian stable main", Mirror("http://example.com/debian")),
        ("# deb http://example.com/debian stable main", None),
        ("URIs: http://example.com/debian-security\n", None),
        ("deb http://example.com/ubuntu noble main", None),
    ],
)
def test_the_mirror_is_the_one_that_the_machine_uses(text: str, mirror: Mirror | None) -> None:
    assert find_mirror(["", text]) == mirror


def test_a_process_holds_what_it_sees_in_the_amount_it_was_given() -> None:
    share = AllocatedDevice(DeviceRef("GPU-a"), 500, 1024)
    record = encode_allocation(Allocation("pod", "node", "main", False, (share,)))

    seen = visible_devices_of({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "GPULOOM_ALLOCATION": record})

    assert seen == (share, AllocatedDevice(DeviceRef("GPU-b"), 1000, 0))


async def test_missing_programs_skip_loudly_and_fail_where_the_tests_must_run(tmp_path: Path) -> None:
    binaries, line = Binaries(tmp_path), RuntimeLine.CONTAINERD_2

    with pytest.raises(pytest.skip.Exception, match="THE TESTS ON REAL NODES DID NOT RUN: with containerd-2"):
        await require_programs(binaries, line, {})
    with pytest.raises(pytest.fail.Exception, match="THE TESTS ON REAL NODES DID NOT RUN"):
        await require_programs(binaries, line, {"GPULOOM_REQUIRE_REAL": "1"})
