"""Control groups in every form that kubelets and runtimes write, and in forms that somebody else made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.attribution.core.cgroup import MAX_CGROUP_BYTES, PodCgroup, pod_of_cgroup

UID = "6f1c1d3e-8b9a-4c5d-9e0f-112233445566"
OTHER = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
HASH = "0123456789abcdef0123456789abcdef"
ID = "c0ffee" + "0" * 58
OTHER_ID = "beef" + "1" * 60


def underscored(uid: str) -> str:
    return uid.replace("-", "_")


def slices(uid: str, qos: str = "burstable", prefix: str = "") -> str:
    """The systemd driver's form down to the pod; `prefix` as in `kubelet-`."""
    inner = f"/{prefix}kubepods-{qos}.slice" if qos else ""
    middle = f"-{qos}" if qos else ""
    return f"/{prefix}kubepods.slice{inner}/{prefix}kubepods{middle}-pod{underscored(uid)}.slice"


def folders(uid: str, qos: str = "burstable") -> str:
    """The cgroupfs driver's form down to the pod."""
    return f"/kubepods/{qos}/pod{uid}" if qos else f"/kubepods/pod{uid}"


FORMS = {
    "cgroupfs": f"{folders(UID)}/{ID}",
    "cgroupfs, guaranteed": f"{folders(UID, '')}/{ID}",
    "cgroupfs, cri-o": f"{folders(UID, 'besteffort')}/crio-{ID}",
    "systemd, containerd": f"{slices(UID)}/cri-containerd-{ID}.scope",
    "systemd, cri-o": f"{slices(UID, 'besteffort')}/crio-{ID}.scope",
    "systemd, docker, guaranteed": f"{slices(UID, '')}/docker-{ID}.scope",
    "a kubelet with a root of its own": f"/kubelet.slice{slices(UID, prefix='kubelet-')}/crio-{ID}.scope",
    "a kubelet with a root of its own, cgroupfs": f"/our-node-1{folders(UID)}/{ID}",
    "a node in a container": f"/docker/{OTHER_ID}/kubelet{folders(UID)}/{ID}",
    "a node under systemd": f"/system.slice/docker-{OTHER_ID}.scope/kubelet{folders(UID)}/{ID}",
    "deeper in its container": f"{slices(UID)}/cri-containerd-{ID}.scope/system.slice/sshd.service",
    "a pod in a pod": f"{folders(UID)}/{ID}/kubelet{folders(OTHER)}/{OTHER_ID}",
    "a pod in a pod, systemd": f"{slices(UID)}/crio-{ID}.scope{slices(OTHER)}/crio-{OTHER_ID}.scope",
    "seen from another pod": f"/../../kubepods-burstable-pod{underscored(UID)}.slice/crio-{ID}.scope",
    "seen from another class": f"/../../../besteffort/pod{UID}/{ID}",
    "seen from the host's depth": f"/../../../..{folders(UID)}/{ID}",
    "a runtime without systemd": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{underscored(UID)}.slice:cri-containerd:{ID}"
    ),
    "a container that was removed": f"{folders(UID)}/{ID} (deleted)",
}


@pytest.mark.parametrize("path", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "template",
    [
        pytest.param("0::{path}\n", id="v2"),
        pytest.param("12:memory:{path}\n11:devices:{path}\n1:name=systemd:{path}\n0::/\n", id="v1"),
        pytest.param("3:cpuset:/\n2:cpu,cpuacct:{path}\n0::/system.slice/containerd.service\n", id="hybrid"),
    ],
)
def test_every_form_tells_the_pod_and_the_container(path: str, template: str) -> None:
    found = pod_of_cgroup(template.format(path=path).encode())

    assert found == PodCgroup(UID, ID)


@pytest.mark.parametrize("path", [f"{folders(HASH)}/{ID}", f"{slices(HASH)}/cri-containerd-{ID}.scope"])
def test_a_static_pod_is_known_by_its_hash(path: str) -> None:
    assert pod_of_cgroup(f"0::{path}\n".encode()) == PodCgroup(HASH, ID)


@pytest.mark.parametrize("last", ["", f"/crio-conmon-{ID}.scope", "/kata_overhead", f"/{ID[:11]}", f"/{ID}0"])
def test_a_process_of_a_pod_but_of_no_container_has_its_pod_alone(last: str) -> None:
    assert pod_of_cgroup(f"0::{folders(UID)}{last}\n".encode()) == PodCgroup(UID)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/sshd.service",
        "/user.slice/user-1000.slice/session-2.scope",
        f"/docker/{ID}",
        f"/system.slice/docker-{ID}.scope",
        "/kubepods",
        "/kubepods.slice/kubepods-burstable.slice",
        f"/pod{UID}/{ID}",
        f"/kubepods/odd/pod{UID}/{ID}",
        f"/kubepods/burstable/podx{UID}/{ID}",
        f"/../cri-containerd-{ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service{folders(UID)}/{ID}",
    ],
)
def test_what_is_not_a_pod_s_has_no_pod(path: str) -> None:
    assert pod_of_cgroup(f"0::{path}\n".encode()) is None


@pytest.mark.parametrize(
    "kept", [folders(UID), slices(UID), folders(UID, ""), f"/docker/{OTHER_ID}{folders(UID)}"]
)
@pytest.mark.parametrize(
    "made",
    [
        f"/{ID}{folders(OTHER)}/{OTHER_ID}",
        f"{folders(OTHER)}/{OTHER_ID}",
        f"/{ID}\r0::{folders(OTHER)}/{OTHER_ID}",
        f"/{ID}/kubepods-burstable-pod{underscored(OTHER)}.slice:cri-containerd:{OTHER_ID}",
        f"/{ID}/user.slice{folders(OTHER)}",
    ],
)
def test_a_container_can_not_pass_for_another_pod_s(kept: str, made: str) -> None:
    found = pod_of_cgroup(f"4:memory:{kept}{made}\n0::{kept}{made}\n".encode())

    assert found is not None
    assert found.pod_uid == UID


def test_a_path_that_goes_wrong_at_its_trusted_end_names_nobody() -> None:
    wrong = f"/kubepods/strange/{ID}{folders(OTHER)}/{OTHER_ID}"

    assert pod_of_cgroup(f"0::{wrong}\n".encode()) is None


def test_lines_that_disagree_on_the_pod_name_nobody() -> None:
    lines = f"2:memory:{folders(UID)}/{ID}\n1:devices:{folders(OTHER)}/{ID}\n"

    assert pod_of_cgroup(lines.encode()) is None


def test_lines_that_disagree_on_the_container_tell_the_pod() -> None:
    lines = f"2:memory:{folders(UID)}/{ID}\n1:devices:{folders(UID)}/{OTHER_ID}\n"

    assert pod_of_cgroup(lines.encode()) == PodCgroup(UID)


def test_more_than_a_kernel_writes_names_nobody() -> None:
    line = f"0::{folders(UID)}/{ID}\n".encode()

    assert pod_of_cgroup(line + b"x" * MAX_CGROUP_BYTES) is None


@given(st.binary(max_size=400))
def test_no_bytes_are_too_strange(content: bytes) -> None:
    assert pod_of_cgroup(content) is None or b"kubepods" in content or b".." in content


PIECES = st.sampled_from(
    [
        "/",
        "kubepods",
        "kubepods.slice",
        "burstable",
        f"pod{UID}",
        f"pod{OTHER}",
        ID,
        "..",
        ":",
        "\n0::",
        "\r",
        "-",
        ".slice",
    ]
)


@given(st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join))
def test_whatever_a_container_appends_it_stays_in_its_pod_or_nowhere(appended: str) -> None:
    """Line breaks the kernel allows in no name."""
    made = appended.replace("\n", "")

    found = pod_of_cgroup(f"0::{folders(UID)}/{ID}/{made}\n".encode("utf-8", "surrogatepass"))

    assert found == PodCgroup(UID, ID)


UIDS = st.uuids(version=4).map(str) | st.text("0123456789abcdef", min_size=32, max_size=32)
IDS = st.text("0123456789abcdef", min_size=64, max_size=64)
QOS = st.sampled_from(["", "burstable", "besteffort"])
ROOTS = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), max_size=2)


@given(UIDS, IDS, QOS, ROOTS)
def test_what_a_kubelet_writes_is_read_back(uid: str, container_id: str, qos: str, roots: list[str]) -> None:
    above = "".join(f"/{root}" for root in roots)
    prefix = "".join(f"{root}-" for root in roots)

    plain = pod_of_cgroup(f"0::{above}{folders(uid, qos)}/{container_id}\n".encode())
    systemd = pod_of_cgroup(f"0::{slices(uid, qos, prefix)}/cri-containerd-{container_id}.scope\n".encode())

    assert plain == systemd == PodCgroup(uid, container_id)
