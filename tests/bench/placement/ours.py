"""The product's own placement, replayed: fleet, prices, device choice, all as in the extender."""

from dataclasses import replace

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.demand import Demand, pods_until_repricing
from gpuloom.placement.devices import GpuView, HostCapacity, NodeView
from gpuloom.placement.fleet.fleet import Fleet, Question
from gpuloom.placement.potential import prices_for
from gpuloom.placement.reasons import Refusal
from tests.bench.placement.trace import Machine, Task

# The trace has no GPU memory: any amount that all shares divide well.
MEMORY_MIB = 16_000
BYTES_PER_MIB = 1 << 20


class Product:
    """Starts without any knowledge of demand and learns from the tasks as they arrive."""

    name = "gpuloom"

    def __init__(self, machines: list[Machine]) -> None:
        self._fleet = Fleet()
        for number, machine in enumerate(machines):
            self._fleet.put(_view(f"node-{number:05d}", machine))
        self._demand = Demand()
        self._learned = 0
        self._reprice_at = pods_until_repricing(0)

    def place(self, task: Task) -> bool:
        request = _request(task)
        self._learn(request)
        winner = self._fleet.evaluate(Question(request, check_host=True)).winner
        if winner is None:
            return False
        view = self._fleet.view(winner.name)
        assert view is not None
        devices = choose_devices(request, view, self._fleet.prices)
        assert not isinstance(devices, Refusal)
        self._fleet.put(_after(view, request, devices))
        return True

    def _learn(self, request: PodRequest) -> None:
        if not request.gpu.count:
            return
        self._demand = self._demand.with_pod(request)
        self._learned += 1
        if self._learned >= self._reprice_at:
            self._fleet.set_prices(prices_for(self._demand, self._fleet.supply()))
            self._reprice_at = self._learned + pods_until_repricing(self._learned)


def _view(name: str, machine: Machine) -> NodeView:
    gpus = tuple(
        GpuView(
            Gpu(f"{name}-{index}", index, machine.model, "", MEMORY_MIB, GpuHealth.HEALTHY), 1000, MEMORY_MIB
        )
        for index in range(machine.gpus)
    )
    memory_bytes = machine.memory_mib * BYTES_PER_MIB
    host = HostCapacity(machine.cpu_milli, machine.cpu_milli, memory_bytes, memory_bytes)
    return NodeView(name, f"uid-{name}", NodeMode.GPULOOM, Delivery.NRI, gpus, host=host)


def _request(task: Task) -> PodRequest:
    """A task without GPUs asks for none of the whole ones: it fits wherever there is CPU and memory."""
    is_share = task.gpus == 1 and task.gpu_milli < 1000
    gpu = GpuRequest(
        RequestKind.SHARE if is_share else RequestKind.WHOLE,
        Authority.GPULOOM,
        count=task.gpus,
        milli=task.gpu_milli if is_share else 1000,
        models=task.models,
    )
    return PodRequest(gpu, "main", task.cpu_milli, task.memory_mib * BYTES_PER_MIB)


def _after(view: NodeView, request: PodRequest, devices: tuple[AllocatedDevice, ...]) -> NodeView:
    taken = {device.device.gpu_uuid: device for device in devices}
    gpus = tuple(
        replace(
            one,
            free_milli=one.free_milli - taken[one.gpu.uuid].milli,
            free_memory_mib=one.free_memory_mib - taken[one.gpu.uuid].memory_mib,
        )
        if one.gpu.uuid in taken
        else one
        for one in view.gpus
    )
    assert view.host is not None
    host = replace(
        view.host,
        cpu_free_milli=view.host.cpu_free_milli - request.cpu_milli,
        memory_free_bytes=view.host.memory_free_bytes - request.memory_bytes,
    )
    return replace(view, gpus=gpus, host=host)
