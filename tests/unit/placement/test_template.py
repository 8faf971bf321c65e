"""A node that is expected is judged as the same node is once it is there."""

import pytest

from gpuloom.catalog import load_catalog
from gpuloom.catalog.entries import InstanceType
from gpuloom.codec.scheduling import schedulable_pod
from gpuloom.model.ledger import HostAccount, NodeLedger
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.model.snapshot import NodeFacts, Taint
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.constraints.filters import UNTOLERATED_TAINT, refusals
from gpuloom.placement.fit import Refusal, host_refusal
from gpuloom.placement.occupancy.node_view import node_view
from gpuloom.placement.template import ExpectedNode, NodeTemplate, expected_node

CATALOG = load_catalog()
INSTANCES = sorted(CATALOG.instances, key=lambda entry: (entry.provider, entry.name))


def observed(instance: InstanceType, expected: ExpectedNode, mode: NodeMode) -> NodeFacts:
    """What an agent on such a machine would report."""
    gpus = tuple(view.gpu for view in expected.view.gpus)
    state = NodeState(
        expected.view.name,
        expected.view.uid,
        mode,
        Delivery.NRI if mode is NodeMode.GPULOOM else Delivery.DEVICE_PLUGIN,
        gpus,
        instance.shape.topology,
    )
    return NodeFacts(state)


@pytest.mark.parametrize("mode", [NodeMode.GPULOOM, NodeMode.NVIDIA])
@pytest.mark.parametrize("instance", INSTANCES, ids=lambda entry: f"{entry.provider}-{entry.name}")
def test_an_expected_node_is_what_the_real_one_will_be(instance: InstanceType, mode: NodeMode) -> None:
    expected = expected_node(NodeTemplate(instance, mode), "new")

    allocatable = expected.node.allocatable
    account = HostAccount(allocatable["cpu"], 0, allocatable["memory"], 0, allocatable["pods"], 0)
    real = node_view(
        NodeLedger("new", expected.view.uid, account=account), observed(instance, expected, mode)
    )

    assert expected.view == real
    assert 0.8 * instance.vcpus < allocatable["cpu"] / 1000 < instance.vcpus
    assert 0.7 * instance.memory_gib < allocatable["memory"] / 1024**3 < instance.memory_gib


def test_daemons_take_their_part_where_they_will_run() -> None:
    instance = CATALOG.instance("aws", "p4d.24xlarge")
    taint = Taint("gpu", "", "NoSchedule")

    def daemon(cpu: str, **spec: object) -> object:
        container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
        return {"metadata": {"name": cpu}, "spec": {"containers": [container], **spec}}

    tolerant = {"tolerations": [{"operator": "Exists"}]}
    daemons = [
        schedulable_pod(daemon("1", **tolerant)),  # type: ignore[arg-type]
        schedulable_pod(daemon("2")),  # type: ignore[arg-type]
        schedulable_pod(daemon("4", nodeSelector={"pool": "other"}, **tolerant)),  # type: ignore[arg-type]
    ]
    template = NodeTemplate(instance, labels={"pool": "a"}, taints=(taint,))

    expected = expected_node(template, "new", daemons)

    assert expected.use.requested == {"cpu": 1000}
    assert expected.use.pods == 1
    assert expected.view.host is not None
    assert expected.view.host.cpu_total_milli - expected.view.host.cpu_free_milli == 1000
    assert refusals(daemons[1], expected.node, expected.use) == (UNTOLERATED_TAINT,)


def test_whole_cards_shares_and_host_are_judged_by_the_usual_functions() -> None:
    expected = expected_node(NodeTemplate(CATALOG.instance("aws", "p4d.24xlarge")), "new")

    def asking(gpu: GpuRequest, cpu_milli: int = 1000) -> PodRequest:
        return PodRequest(gpu, "main", cpu_milli)

    whole = asking(GpuRequest(RequestKind.WHOLE, Authority.GPULOOM, count=8))
    too_many = asking(GpuRequest(RequestKind.WHOLE, Authority.GPULOOM, count=9))
    greedy = asking(GpuRequest(RequestKind.SHARE, Authority.GPULOOM, milli=100), cpu_milli=96_000)

    assert not isinstance(choose_devices(whole, expected.view), Refusal)
    assert isinstance(choose_devices(too_many, expected.view), Refusal)
    assert host_refusal(greedy, expected.view) is not None
