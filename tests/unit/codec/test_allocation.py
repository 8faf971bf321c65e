import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloom.codec.allocation import (
    MAX_BYTES,
    MAX_DEVICES,
    believable,
    decode_allocation,
    encode_allocation,
    visible_devices,
)
from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=40)
DEVICES = st.builds(
    AllocatedDevice,
    device=st.builds(
        DeviceRef,
        gpu_uuid=NAMES.map(lambda name: f"GPU-{name}"),
        mig=st.none() | st.builds(MigPlacement, start=st.integers(0, 11), profile=st.just("1g.5gb+me")),
    ),
    milli=st.integers(1, 1000),
    memory_mib=st.integers(0, 200_000),
)
ALLOCATIONS = st.builds(
    Allocation,
    pod_uid=NAMES,
    node_uid=NAMES,
    container=NAMES,
    advisory=st.booleans(),
    devices=st.lists(DEVICES, min_size=1, max_size=16, unique_by=lambda d: d.device.gpu_uuid).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def a_document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "v": 1,
        "pod": "pod-1",
        "node": "node-1",
        "container": "main",
        "advisory": False,
        "devices": [{"uuid": "GPU-a", "milli": 1000, "mib": 40960}],
    }
    return document | changes


def a_device(**changes: Any) -> dict[str, Any]:
    return {"uuid": "GPU-a", "milli": 250, "mib": 100} | changes


@given(ALLOCATIONS)
def test_an_allocation_survives_the_round_trip(allocation: Allocation) -> None:
    text = encode_allocation(allocation)

    assert decode_allocation(text) == allocation
    assert encode_allocation(decode_allocation(text)) == text


def test_the_text_is_compact_and_versioned() -> None:
    allocation = Allocation(
        pod_uid="p",
        node_uid="n",
        container="main",
        advisory=True,
        devices=(AllocatedDevice(DeviceRef("GPU-a", MigPlacement(4, "3g.20gb")), 500, 20096),),
    )

    assert encode_allocation(allocation) == (
        '{"v":1,"pod":"p","node":"n","container":"main","advisory":true,'
        '"devices":[{"uuid":"GPU-a","milli":500,"mib":20096,"mig":{"profile":"3g.20gb","start":4}}]}'
    )


def test_the_largest_allocation_can_be_read_back() -> None:
    devices = tuple(
        AllocatedDevice(DeviceRef(f"GPU-{i:036d}", MigPlacement(11, "1g.24gb+me.all")), 1000, 200_000)
        for i in range(MAX_DEVICES)
    )
    allocation = Allocation("p" * 253, "n" * 253, "c" * 253, False, devices)

    assert decode_allocation(encode_allocation(allocation)) == allocation


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (a_document(v=2), "version 2 is not known"),
        (a_document(v=True), "version True is not known"),
        (a_document(v=1.0), "version 1.0 is not known"),
        ({}, "version None is not known"),
        (a_document(extra=1), "unknown field 'extra'"),
        (a_document(pod=""), "allocation.pod is malformed"),
        (a_document(node=7), "allocation.node is malformed"),
        (a_document(container="a,b"), "allocation.container is malformed"),
        (a_document(advisory="false"), "advisory must be true or false"),
        (a_document(devices={}), "devices must be a list"),
        (a_document(devices=[]), "1 to 64 devices, not 0"),
        (a_document(devices=[a_device(uuid=f"GPU-{i}") for i in range(65)]), "not 65"),
        (a_document(devices=[1]), r"devices\[0\] must be an object"),
        (a_document(devices=[a_device(milli=0)]), "milli must be a whole number from 1 to 1000"),
        (a_document(devices=[a_device(milli=1001)]), "milli must be a whole number from 1 to 1000"),
        (a_document(devices=[a_device(milli=True)]), "milli must be a whole number"),
        (a_document(devices=[a_device(mib=-1)]), "mib must be a whole number"),
        (a_document(devices=[a_device(mib=None)]), "mib must be a whole number"),
        (a_document(devices=[a_device(uuid="all")]), "uuid is malformed"),
        (a_document(devices=[a_device(uuid="GPU-a,GPU-b")]), "uuid is malformed"),
        (a_document(devices=[a_device(other=1)]), "unknown field 'other'"),
        (a_document(devices=[a_device(mig=None)]), "mig must be an object"),
        (a_document(devices=[a_device(mig={"profile": "1g.5gb"})]), "start must be a whole number"),
        (a_document(devices=[a_device(mig={"profile": "1g 5gb", "start": 0})]), "profile is malformed"),
        (a_document(devices=[a_device(), a_device()]), "device GPU-a twice"),
        (a_document(devices=[a_device(), a_device(mig={"profile": "1g.5gb", "start": 0})]), "twice"),
        (
            a_document(devices=[a_device(mig={"profile": p, "start": 0}) for p in ("1g.5gb", "2g.10gb")]),
            "twice",
        ),
    ],
)
def test_a_doubtful_record_is_refused_with_the_reason(document: object, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        decode_allocation(json.dumps(document))


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", '{"v":1}}', "\ud800", "[" * 10_000, "9" * 5000, "NaN"]
)
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        decode_allocation(text)


def test_an_endless_text_is_refused_unread() -> None:
    with pytest.raises(InvalidRequestError, match=f"longer than {MAX_BYTES} bytes"):
        decode_allocation(" " * (MAX_BYTES + 1))


@given(st.text(max_size=200))
def test_any_text_is_an_allocation_or_refused(text: str) -> None:
    try:
        decode_allocation(text)
    except InvalidRequestError:
        return


@given(st.dictionaries(st.sampled_from(["v", "pod", "node", "container", "advisory", "devices"]), JSON), JSON)
@example({"v": 1, "devices": [{"uuid": "GPU-a", "mig": {"start": [], "profile": {}}}]}, None)
def test_any_json_is_an_allocation_or_refused(fields: dict[str, Any], device: object) -> None:
    for document in (fields, a_document(**fields), a_document(devices=[device]), device):
        try:
            decode_allocation(json.dumps(document))
        except InvalidRequestError:
            continue


def test_a_record_is_believed_only_for_its_own_pod_and_node() -> None:
    allocation = decode_allocation(json.dumps(a_document()))

    assert believable(allocation, "pod-1", "node-1") is None
    assert believable(allocation, "pod-2", "node-1") == "the allocation names another pod"
    assert believable(allocation, "pod-1", "node-2") == "the allocation names another node"


def test_visible_devices_are_gpu_uuids_and_present_mig_uuids() -> None:
    place = DeviceRef("GPU-b", MigPlacement(0, "1g.5gb"))
    whole = AllocatedDevice(DeviceRef("GPU-a"), 1000, 40960)
    allocation = Allocation("p", "n", "c", False, (whole, AllocatedDevice(place, 125, 4864)))

    assert visible_devices(allocation, {place: "MIG-x"}) == "GPU-a,MIG-x"
    with pytest.raises(NotFoundError):
        visible_devices(allocation)
