"""What the runtime is answered, and what is remembered of it."""

from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import GpuloomError, NotAllowedError, UnavailableError
from gpuloom.model.allocation import Allocation
from gpuloom.names import ANNOTATION_DELIVERED
from gpuloom.nri import nri_pb2 as pb
from gpuloom.runtime.clock import SystemClock
from services.node_agent.delivery.cdi_folders import CdiFolders
from services.node_agent.delivery.core.deliveries import MAX_LISTED, Deliveries
from services.node_agent.delivery.core.handlers import HandlerRules
from services.node_agent.delivery.plugin import PLUGIN_SERVICE, Plugin, UnknownCallError
from tests.unit.node_agent.delivery.builders import (
    a_container,
    a_device,
    a_plugin,
    a_pod,
    a_sandbox,
    an_allocation,
    an_informer,
    held,
    known_pods,
)


def ask(plugin: Plugin, method: str, call: Protobuf) -> bytes:
    return plugin.answer(PLUGIN_SERVICE, method, call.SerializeToString())


def synchronize(plugin: Plugin, *listed: tuple[pb.PodSandbox, pb.Container], more: bool = False) -> None:
    part = pb.SynchronizeRequest(
        pods=[pod for pod, _ in listed], containers=[container for _, container in listed], more=more
    )
    assert pb.SynchronizeResponse.FromString(ask(plugin, "Synchronize", part)).more is more


def create(
    plugin: Plugin, pod: str, allocation: Allocation | str | None, name: str = "main", handler: str = ""
) -> list[str]:
    """Paths of the device nodes that the container gets."""
    sandbox = a_sandbox(pod, allocation, handler)
    call = pb.CreateContainerRequest(pod=sandbox, container=a_container(pod, name))
    answer = pb.CreateContainerResponse.FromString(ask(plugin, "CreateContainer", call))
    return [device.path for device in answer.adjust.linux.devices]


def marked(pod: str, allocation: Allocation | str, **changes: Any) -> tuple[pb.PodSandbox, pb.Container]:
    text = encode_allocation(allocation) if isinstance(allocation, Allocation) else allocation
    return a_sandbox(pod), a_container(pod, annotations={ANNOTATION_DELIVERED: text}, **changes)


def a_synchronized_plugin() -> tuple[Plugin, Deliveries]:
    deliveries = Deliveries()
    plugin = a_plugin(deliveries)
    synchronize(plugin)
    return plugin, deliveries


def test_we_are_called_for_what_starts_and_ends_and_for_nothing_else() -> None:
    answer = ask(a_plugin(Deliveries()), "Configure", pb.ConfigureRequest(runtime_name="containerd"))

    assert pb.ConfigureResponse.FromString(answer).events == 0b110_0000_1110


async def test_a_container_gets_the_devices_of_its_allocation_and_holds_them() -> None:
    plugin, deliveries = a_synchronized_plugin()

    given_paths = create(plugin, "train", an_allocation(a_device("GPU-a"), a_device("GPU-b")))

    assert given_paths == ["/dev/GPU-a", "/dev/GPU-b"]
    assert await held(deliveries) == ["train"]


async def test_other_containers_are_not_touched() -> None:
    plugin, deliveries = a_synchronized_plugin()

    assert create(plugin, "train", an_allocation(), name="side") == []
    assert create(plugin, "web", None) == []
    assert await held(deliveries) == []


async def test_the_spec_says_which_container_gets_the_devices_and_how_much() -> None:
    deliveries = Deliveries()
    wrong = an_allocation(container="side")
    small = a_pod("small", limits={"gpuloom.dev/gpu-milli": "100"})
    async with an_informer(a_pod("train"), small, a_pod("none", asking=())) as informer:
        plugin = a_plugin(deliveries, pods=known_pods(informer))
        synchronize(plugin)

        right = create(plugin, "train", an_allocation())
        with pytest.raises(
            NotAllowedError, match=r"gpuloom: the allocation gives 1000 milli, but .* 100 milli"
        ):
            create(plugin, "small", an_allocation(a_device("GPU-b"), pod="small"))
        with pytest.raises(NotAllowedError, match="gpuloom: the allocation is for container side"):
            create(plugin, "train", wrong, name="side")
        with pytest.raises(NotAllowedError, match="gpuloom: 0 containers of the pod ask"):
            create(plugin, "none", an_allocation(a_device("GPU-b"), pod="none"))
        with pytest.raises(NotAllowedError, match="gpuloom: Kubernetes has not shown this pod"):
            create(plugin, "new", an_allocation(a_device("GPU-b"), pod="new"))

    assert right == ["/dev/GPU-a"]
    assert await held(deliveries) == ["train"]


@pytest.mark.parametrize("handler", ["nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental"])
@pytest.mark.parametrize("allocation", [None, an_allocation()])
async def test_a_container_under_nvidias_runtime_is_not_created(
    handler: str, allocation: Allocation | None
) -> None:
    plugin, deliveries = a_synchronized_plugin()

    with pytest.raises(NotAllowedError, match=f"gpuloom: runtime handler {handler} could show .* every GPU"):
        create(plugin, "train", allocation, handler=handler)

    assert create(plugin, "web", None, handler="kata") == []
    assert await held(deliveries) == []


async def test_pods_that_are_allowed_to_use_nvidias_runtime_are_created() -> None:
    operator, user = a_pod("operator", account="exporter"), a_pod("user", account="default")
    by_account = HandlerRules(allowed=frozenset({"other", "team-a/exporter"}))
    by_namespace = HandlerRules(allowed=frozenset({"team-a"}))
    async with an_informer(operator, user) as informer:
        pods = known_pods(informer)
        careful = a_plugin(Deliveries(), pods=pods, handlers=by_account)
        open_to_all = a_plugin(Deliveries(), pods=pods, handlers=by_namespace)

        assert create(careful, "operator", None, handler="nvidia") == []
        for pod in ("user", "unknown"):
            with pytest.raises(NotAllowedError, match="runtime handler nvidia"):
                create(careful, pod, None, handler="nvidia")
            assert create(open_to_all, pod, None, handler="nvidia") == []


async def test_what_pods_have_by_environment_is_not_given_again_and_counts_once() -> None:
    half = a_device(milli=500)
    by_env = a_pod("old", an_allocation(half, pod="old"))
    limits = {"gpuloom.dev/gpu-milli": "500"}
    train = a_pod("train", an_allocation(half), limits=limits)
    async with an_informer(by_env, train, a_pod("late", limits=limits)) as informer:
        plugin = a_plugin(Deliveries(), pods=known_pods(informer))
        synchronize(plugin)

        first = create(plugin, "train", an_allocation(half))
        with pytest.raises(NotAllowedError, match="not 1500 beside pods team-a/old, team-a/train"):
            create(plugin, "late", an_allocation(half, pod="late"))

    assert first == ["/dev/GPU-a"]


async def test_a_refused_container_holds_nothing() -> None:
    plugin, deliveries = a_synchronized_plugin()

    with pytest.raises(NotAllowedError, match="gpuloom: this node has no GPU GPU-x"):
        create(plugin, "train", an_allocation(a_device("GPU-x")))

    assert await held(deliveries) == []


async def test_a_device_without_a_cdi_spec_fails_the_container() -> None:
    deliveries = Deliveries()
    plugin = a_plugin(deliveries, CdiFolders([]))
    synchronize(plugin)

    with pytest.raises(NotAllowedError, match="no CDI spec of this node has it"):
        create(plugin, "train", an_allocation())

    assert await held(deliveries) == []


def test_before_we_know_what_runs_only_containers_without_devices_start() -> None:
    plugin = a_plugin(Deliveries())

    assert create(plugin, "web", None) == []
    with pytest.raises(NotAllowedError, match="has not said yet"):
        create(plugin, "train", an_allocation())


async def test_what_runs_is_learned_in_parts() -> None:
    deliveries = Deliveries()
    plugin = a_plugin(deliveries)

    synchronize(plugin, marked("train", an_allocation()), more=True)
    with pytest.raises(UnavailableError):
        await deliveries.holders()
    synchronize(
        plugin,
        marked("other", an_allocation(a_device("GPU-b"), pod="other")),
        (a_sandbox("web"), a_container("web")),
        marked("ended", an_allocation(pod="ended"), state=pb.CONTAINER_STOPPED),
    )

    assert await held(deliveries) == ["train", "other"]
    with pytest.raises(NotAllowedError, match="beside pods team-a/train"):
        create(plugin, "late", an_allocation(pod="late"))


def test_a_pod_that_started_without_its_devices_is_told_of_and_holds_none() -> None:
    deliveries = Deliveries()
    missed = a_sandbox("missed", an_allocation(pod="missed"))
    copied = a_sandbox("copied", an_allocation(pod="other"))
    listed = [missed, copied, a_sandbox("web")]

    deliveries.take_part(listed, [a_container(pod.name) for pod in listed] + [a_container("missed", "side")])
    without = deliveries.complete()

    assert [pod.name for pod in without] == ["missed"]
    assert deliveries.all() == ()


async def test_a_mark_that_can_not_be_read_makes_holders_unknown_until_its_container_ends() -> None:
    deliveries = Deliveries()
    plugin = a_plugin(deliveries)
    synchronize(plugin, marked("newer", '{"v": 2}'))

    with pytest.raises(UnavailableError, match="main of team-a/newer was given can't be read"):
        await deliveries.holders()
    with pytest.raises(NotAllowedError, match="can't be read"):
        create(plugin, "train", an_allocation())
    ask(plugin, "StopContainer", pb.StopContainerRequest(container=a_container("newer")))

    assert await held(deliveries) == []


@pytest.mark.parametrize("mark", ['{"v": 2}', encode_allocation(an_allocation(pod="forger"))])
async def test_a_mark_that_a_pod_carries_itself_says_nothing(mark: str) -> None:
    deliveries = Deliveries()
    plugin = a_plugin(deliveries)
    pod, container = marked("forger", mark)
    # CRI-O shows what a pod carries on its containers.
    pod.annotations[ANNOTATION_DELIVERED] = mark
    synchronize(plugin, (pod, container))

    assert await held(deliveries) == []
    assert create(plugin, "train", an_allocation())


def test_a_pod_that_carries_a_mark_itself_gets_no_devices() -> None:
    plugin, deliveries = a_synchronized_plugin()
    sandbox = a_sandbox("train", an_allocation())
    sandbox.annotations[ANNOTATION_DELIVERED] = "mine"
    call = pb.CreateContainerRequest(pod=sandbox, container=a_container("train"))

    with pytest.raises(NotAllowedError, match=ANNOTATION_DELIVERED):
        ask(plugin, "CreateContainer", call)

    assert deliveries.all() == ()


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("StopContainer", pb.StopContainerRequest(pod=a_sandbox(), container=a_container())),
        ("RemoveContainer", pb.StopContainerRequest(pod=a_sandbox(), container=a_container())),
        ("StopPodSandbox", pb.StopContainerRequest(pod=a_sandbox())),
        ("RemovePodSandbox", pb.StopContainerRequest(pod=a_sandbox())),
        ("StateChange", pb.StateChangeEvent(event=pb.REMOVE_CONTAINER, container=a_container())),
        ("StateChange", pb.StateChangeEvent(event=pb.STOP_POD_SANDBOX, pod=a_sandbox())),
    ],
)
async def test_the_end_of_a_container_frees_its_devices(method: str, call: Protobuf) -> None:
    plugin, deliveries = a_synchronized_plugin()
    create(plugin, "train", an_allocation())

    ask(plugin, method, call)

    assert await held(deliveries) == []
    assert create(plugin, "next", an_allocation(pod="next")) == ["/dev/GPU-a"]


def test_a_runtime_that_lists_without_end_is_given_up() -> None:
    plugin = a_plugin(Deliveries())
    part = [(a_sandbox(), a_container())] * (MAX_LISTED - 10)
    synchronize(plugin, *part, more=True)

    with pytest.raises(UnavailableError, match="more than a node can run"):
        synchronize(plugin, *part, more=True)


def test_a_call_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnknownCallError):
        a_plugin(Deliveries()).answer(PLUGIN_SERVICE, "Surprise", b"")
    with pytest.raises(UnknownCallError):
        a_plugin(Deliveries()).answer("other.Service", "Configure", b"")


METHODS = ("Configure", "Synchronize", "CreateContainer", "StopContainer", "StateChange", "Shutdown")


@given(st.sampled_from(METHODS), st.binary(max_size=120))
def test_any_payload_is_answered_or_refused(method: str, payload: bytes) -> None:
    plugin, _ = a_synchronized_plugin()
    try:
        plugin.answer(PLUGIN_SERVICE, method, payload)
    except GpuloomError:
        pass


def test_an_answer_takes_far_less_than_fifty_milliseconds() -> None:
    plugin, _ = a_synchronized_plugin()
    clock = SystemClock()
    durations_s = []
    for _ in range(100):
        started_s = clock.monotonic()
        create(plugin, "train", an_allocation(a_device("GPU-a"), a_device("GPU-b")))
        durations_s.append(clock.monotonic() - started_s)

    # The median: a busy machine may take any single one away from us.
    assert sorted(durations_s)[50] < 0.01
