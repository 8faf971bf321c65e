import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.machine import (
    MAX_LINKS_PER_GPU,
    processes_answer_from_proto,
    processes_answer_to_proto,
    topology_answer_from_proto,
    topology_answer_to_proto,
)
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.model.process import GpuProcess
from gpuloom.model.topology import MAX_GPUS_PER_NODE, Topology
from gpuloom.model.wiring import GpuWiring, NvLink, NvLinkRemote
from gpuloom.v1 import node_agent_pb2 as pb
from tests.strategies import hostile, topologies

TEXTS = st.text("abc-/.", max_size=20)
NAMES = st.text("abc", min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**31)
LINKS = st.builds(NvLink, st.integers(0, 63), st.sampled_from(NvLinkRemote), TEXTS)
WIRINGS = st.builds(
    GpuWiring, NAMES, st.integers(0, 63), TEXTS, st.none() | st.integers(0, 7), st.lists(LINKS).map(tuple)
)
DEVICES = st.builds(
    DeviceRef, NAMES, st.none() | st.builds(MigPlacement, st.integers(0, 7), st.just("1g.5gb"))
)
PROCESSES = st.builds(
    GpuProcess,
    pid=NUMBERS,
    name=TEXTS,
    device=DEVICES,
    memory_mib=st.none() | NUMBERS,
    sm_ratio=st.none() | st.floats(0, 1),
    pod=st.none() | st.builds(PodRef, TEXTS, TEXTS, TEXTS),
    container=TEXTS,
)
TOO_MANY_LINKS = [pb.NvLink()] * (MAX_LINKS_PER_GPU + 1)


@given(st.none() | topologies(), st.lists(WIRINGS, max_size=4).map(tuple))
def test_a_node_s_wiring_survives_the_wire(topology: Topology | None, gpus: tuple[GpuWiring, ...]) -> None:
    assert topology_answer_from_proto(topology_answer_to_proto(topology, gpus)) == (topology, gpus)


@given(st.lists(PROCESSES, max_size=4).map(tuple), st.dictionaries(NAMES, TEXTS, max_size=3))
def test_a_node_s_processes_survive_the_wire(
    processes: tuple[GpuProcess, ...], unanswered: dict[str, str]
) -> None:
    sent = processes_answer_to_proto(processes, unanswered)

    assert processes_answer_from_proto(sent) == (processes, unanswered)


@given(hostile(pb.GetTopologyResponse))
def test_any_wiring_is_decoded_or_refused(message: pb.GetTopologyResponse) -> None:
    try:
        topology, gpus = topology_answer_from_proto(message)
    except InvalidRequestError:
        return

    assert topology_answer_from_proto(topology_answer_to_proto(topology, gpus)) == (topology, gpus)


@given(hostile(pb.ListProcessesResponse))
def test_any_processes_are_decoded_or_refused(message: pb.ListProcessesResponse) -> None:
    try:
        processes, unanswered = processes_answer_from_proto(message)
    except InvalidRequestError:
        return

    assert len(processes) == len(message.processes)
    assert all(processes_answer_to_proto(processes, unanswered).processes)


@pytest.mark.parametrize(
    "message",
    [
        pb.GetTopologyResponse(gpus=[pb.GpuWiring(gpu_uuid="GPU-a")] * (MAX_GPUS_PER_NODE + 1)),
        pb.GetTopologyResponse(gpus=[pb.GpuWiring(gpu_uuid="GPU-a", links=TOO_MANY_LINKS)]),
        pb.GetTopologyResponse(gpus=[pb.GpuWiring()]),
    ],
    ids=["too many GPUs", "too many links", "a GPU without UUID"],
)
def test_a_wiring_beyond_all_machines_is_refused(message: pb.GetTopologyResponse) -> None:
    with pytest.raises(InvalidRequestError):
        topology_answer_from_proto(message)


def test_a_list_that_no_node_can_run_is_refused() -> None:
    many = pb.ListProcessesResponse(processes=[pb.GpuProcess()] * 20_001)

    with pytest.raises(InvalidRequestError, match="more processes than a node can run"):
        processes_answer_from_proto(many)
