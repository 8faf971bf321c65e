"""CDI specs: read in full or refused, found by folder, and turned into what a runtime applies."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.nri import nri_pb2 as pb
from services.node_agent.delivery.cdi import MAX_SPEC_BYTES, read_spec
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.core.adjustment import adjustment
from services.node_agent.delivery.core.edits import (
    DeviceNode,
    Edits,
    Hook,
    Moment,
    Mount,
    NodeNumbers,
    combine,
)

KIND = "nvidia.com/gpu"
SPEC: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": KIND,
    "annotations": {"made-by": "test"},
    "devices": [
        {
            "name": "GPU-a",
            "annotations": {"a": "b"},
            "containerEdits": {
                "deviceNodes": [
                    {
                        "path": "/dev/nvidia0",
                        "type": "c",
                        "major": 195,
                        "minor": 0,
                        "fileMode": 432,
                        "gid": 44,
                    },
                    {"path": "/dev/cap", "hostPath": "/dev/null", "permissions": "r"},
                ],
                "additionalGids": [44],
            },
        },
        {"name": "GPU-b", "containerEdits": {"env": ["ONLY_B=1"]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "EMPTY="],
        "mounts": [{"hostPath": "/usr/lib/x.so", "containerPath": "/lib/x.so", "options": ["ro", "bind"]}],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/hook",
                "args": ["hook", "go"],
                "env": ["A=b"],
                "timeout": 5,
            }
        ],
    },
}


def a_spec(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(SPEC) | changes


def with_edits(**edits: Any) -> dict[str, Any]:
    return a_spec(containerEdits=edits)


def read(document: Any) -> Any:
    return read_spec(json.dumps(document).encode(), is_yaml=False)


def folders(tmp_path: Path, **files: dict[str, Any]) -> CdiFolders:
    """Files are named folder__name."""
    for name, document in files.items():
        folder, _, rest = name.partition("__")
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{rest}.json").write_text(json.dumps(document))
    return CdiFolders([tmp_path / "static", tmp_path / "dynamic"])


def test_json_and_yaml_say_the_same() -> None:
    by_json = read(SPEC)
    by_yaml = read_spec(yaml.safe_dump(SPEC).encode(), is_yaml=True)

    assert by_json == by_yaml
    assert by_json.shared == Edits(
        environment=(("NVIDIA_VISIBLE_DEVICES", "void"), ("EMPTY", "")),
        mounts=(Mount("/usr/lib/x.so", "/lib/x.so", "bind", ("ro", "bind")),),
        hooks=(Hook(Moment.CREATE_CONTAINER, "/usr/bin/hook", ("hook", "go"), ("A=b",), 5),),
    )
    assert by_json.devices["GPU-a"].nodes == (
        DeviceNode("/dev/nvidia0", "/dev/nvidia0", NodeNumbers("c", 195, 0), file_mode=0o660, gid=44),
        DeviceNode("/dev/cap", "/dev/null", None, permissions="r"),
    )


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "must be an object"),
        (a_spec(cdiVersion="9.0.0"), "cdiVersion"),
        (a_spec(kind="gpu"), "kind is malformed"),
        (a_spec(devices=[]), "1 to 1024 devices"),
        (a_spec(devices=[{"name": "a"}, {"name": "a"}]), "twice"),
        (a_spec(devices=[{"name": "-a"}]), "name is malformed"),
        (a_spec(surprise=1), "unknown field 'surprise'"),
        (with_edits(surprise=1), "unknown field"),
        (with_edits(env=["-PATH=x"]), "NAME=value"),
        (with_edits(env=["PATH"]), "NAME=value"),
        (with_edits(deviceNodes=[{"path": "dev/null"}]), "absolute path"),
        (with_edits(deviceNodes=[{"path": "/dev/x", "type": "z"}]), "type must be"),
        (with_edits(deviceNodes=[{"path": "/dev/x", "permissions": "rwx"}]), "permissions"),
        (with_edits(deviceNodes=[{"path": "/dev/x", "type": "c", "major": -1}]), "whole number"),
        (with_edits(deviceNodes=[{"path": "/dev/x", "type": "c", "major": True}]), "whole number"),
        (with_edits(mounts=[{"hostPath": "/a", "containerPath": "b"}]), "absolute path"),
        (with_edits(mounts=[{"containerPath": "/b"}]), "hostPath must be a text"),
        (with_edits(hooks=[{"hookName": "never", "path": "/a"}]), "hookName"),
        (with_edits(hooks=[{"hookName": "prestart", "path": "a"}]), "absolute path"),
        (with_edits(env=["A=b"] * 513), "more than 512"),
    ],
)
def test_what_is_not_fully_understood_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        read(document)


def test_yaml_that_could_grow_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="alias"):
        read_spec(b"a: &x [1, 2]\nb: *x\n", is_yaml=True)
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        read_spec(b"[" * 100_000, is_yaml=True)
    with pytest.raises(InvalidRequestError, match="at most"):
        read_spec(b" " * (MAX_SPEC_BYTES + 1), is_yaml=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cdiVersion",
                    "kind",
                    "devices",
                    "name",
                    "containerEdits",
                    "env",
                    "deviceNodes",
                    "path",
                    "hooks",
                    "mounts",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_any_document_is_a_spec_or_a_refusal(value: Any, is_yaml: bool) -> None:
    document = {**SPEC, "containerEdits": value} if not isinstance(value, dict) else {**SPEC, **value}
    try:
        read_spec(json.dumps(document).encode(), is_yaml)
    except InvalidRequestError:
        pass


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_spec_or_a_refusal(content: bytes, is_yaml: bool) -> None:
    with pytest.raises(InvalidRequestError):
        read_spec(content, is_yaml)


def test_devices_bring_what_their_spec_shares_once(tmp_path: Path) -> None:
    registry = folders(tmp_path, static__gpu=a_spec())
    registry.scan()

    edits = registry.edits(KIND, ("GPU-a", "GPU-b"))

    assert dict(edits.environment) == {"NVIDIA_VISIBLE_DEVICES": "void", "EMPTY": "", "ONLY_B": "1"}
    assert (len(edits.mounts), len(edits.hooks)) == (1, 1)
    null = os.stat("/dev/null").st_rdev
    assert [node.numbers for node in edits.nodes] == [
        NodeNumbers("c", 195, 0),
        NodeNumbers("c", os.major(null), os.minor(null)),
    ]


def test_the_later_folder_wins(tmp_path: Path) -> None:
    other = a_spec(
        devices=[{"name": "GPU-a", "containerEdits": {"env": ["FROM=dynamic"]}}], containerEdits={}
    )
    registry = folders(tmp_path, static__gpu=a_spec(), dynamic__gpu=other)
    registry.scan()

    assert registry.edits(KIND, ("GPU-a",)).environment == (("FROM", "dynamic"),)
    assert ("ONLY_B", "1") in registry.edits(KIND, ("GPU-b",)).environment


def test_a_device_of_two_specs_in_one_folder_is_not_given(tmp_path: Path) -> None:
    registry = folders(tmp_path, static__one=a_spec(), static__two=a_spec())
    registry.scan()

    with pytest.raises(NotFoundError, match="two CDI specs"):
        registry.edits(KIND, ("GPU-a",))


def test_a_bad_file_hides_no_other(tmp_path: Path) -> None:
    registry = folders(tmp_path, static__bad=a_spec(surprise=1), static__good=a_spec())
    registry.scan()

    assert registry.edits(KIND, ("GPU-b",)).environment


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"deviceNodes": [{"path": "/dev/there-is-no-such-device"}]}, "No such file"),
        ({"deviceNodes": [{"path": "/etc/passwd"}]}, "not a device node"),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, "netDevices"),
    ],
)
def test_a_device_that_can_not_be_given_says_why(tmp_path: Path, edits: dict[str, Any], reason: str) -> None:
    registry = folders(tmp_path, static__gpu=a_spec(devices=[{"name": "GPU-a", "containerEdits": edits}]))
    registry.scan()

    with pytest.raises(NotFoundError, match=reason):
        registry.edits(KIND, ("GPU-a",))


def test_an_unknown_device_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no CDI spec"):
        folders(tmp_path).edits(KIND, ("GPU-a",))


def test_changed_new_and_removed_files_are_noticed(tmp_path: Path) -> None:
    registry = folders(tmp_path, static__gpu=a_spec())
    registry.scan()
    (tmp_path / "static/gpu.json").unlink()
    (tmp_path / "static/next.yaml").write_text(yaml.safe_dump(a_spec(devices=[{"name": "GPU-c"}])))

    registry.scan()

    assert registry.edits(KIND, ("GPU-c",)).environment
    with pytest.raises(NotFoundError):
        registry.edits(KIND, ("GPU-a",))


def test_edits_become_what_every_runtime_applies() -> None:
    spec = read(SPEC)
    node = DeviceNode("/dev/cap", "/dev/null", NodeNumbers("c", 1, 3), permissions="r")
    edits = combine([spec.shared, Edits(nodes=(*spec.devices["GPU-a"].nodes[:1], node), groups=(44,))])

    made = adjustment(edits, {"mark": "1"})

    assert dict(made.annotations) == {"mark": "1"}
    assert [(one.key, one.value) for one in made.env] == [("NVIDIA_VISIBLE_DEVICES", "void"), ("EMPTY", "")]
    assert made.mounts[0] == pb.Mount(
        destination="/lib/x.so", type="bind", source="/usr/lib/x.so", options=["ro", "bind"]
    )
    assert made.hooks.create_container[0].timeout.value == 5
    assert [(one.path, one.major, one.file_mode.value) for one in made.linux.devices] == [
        ("/dev/nvidia0", 195, 0o666),
        ("/dev/cap", 1, 0o444),
    ]


def test_no_edits_change_nothing() -> None:
    assert adjustment(Edits(), {}) == pb.ContainerAdjustment()
