"""What the containers of a pod ask for, and what that makes for the whole pod.

Follows Kubernetes' rule: main containers and sidecars add up; init containers run one after another, each
beside the sidecars started before it; the pod needs the larger of both.
Never decides what a GPU resource means: that is `codec/pod.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from gpuloom.codec.fields import JsonObject, as_object, list_field, object_field, shown, text_field
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.parse import parse_quantity, quantity_milli, quantity_value
from gpuloom.names import (
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)

MAX_CONTAINERS = 1000
# Kubernetes admits requests that no machine can serve. The arithmetic on whole clusters is in 64 bits, so
# beyond these, more than any node has, all amounts of a pod or a node are alike.
MOST_CPU_MILLI = 2**40
MOST_MEMORY_BYTES = 2**50

_DEVICE_RESOURCES = frozenset({RESOURCE_NVIDIA_GPU, RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB})


class ContainerKind(StrEnum):
    MAIN = "main"
    INIT = "init"
    SIDECAR = "sidecar"


@dataclass(frozen=True, slots=True)
class Container:
    """One container; `devices` has the positive amounts of resources that we manage."""

    name: str
    kind: ContainerKind
    devices: Mapping[str, int]
    resources: JsonObject


def containers(pod: JsonObject) -> tuple[Container, ...]:
    """Init containers in their order, then the main ones."""
    spec = object_field(pod, "spec", "pod")
    init = list_field(spec, "initContainers", "spec")
    main = list_field(spec, "containers", "spec")
    if len(init) + len(main) > MAX_CONTAINERS:
        raise InvalidRequestError(f"a pod has at most {MAX_CONTAINERS} containers")
    found = [
        _container(entry, ContainerKind.INIT, f"spec.initContainers[{i}]") for i, entry in enumerate(init)
    ]
    found += [_container(entry, ContainerKind.MAIN, f"spec.containers[{i}]") for i, entry in enumerate(main)]
    return tuple(found)


def pod_total(needs: Iterable[Container], amount: Callable[[Container], int]) -> int:
    """The pod's effective amount of one resource."""
    running, sidecars, peak_of_init = 0, 0, 0
    for container in needs:
        needed = amount(container)
        if container.kind is ContainerKind.MAIN:
            running += needed
        elif container.kind is ContainerKind.SIDECAR:
            running += needed
            sidecars += needed
            peak_of_init = max(peak_of_init, sidecars)
        else:
            peak_of_init = max(peak_of_init, sidecars + needed)
    return max(running, peak_of_init)


def cpu_and_memory(pod: JsonObject, needs: Iterable[Container]) -> tuple[int, int]:
    """Effective CPU in thousandths of a core and memory in bytes, with the pod's overhead; capped."""
    listed = tuple(needs)
    allocated = _allocated_by_container(pod)
    return (
        min(_host_total(pod, listed, "cpu", allocated), MOST_CPU_MILLI),
        min(_host_total(pod, listed, "memory", allocated), MOST_MEMORY_BYTES),
    )


def _container(entry: object, kind: ContainerKind, where: str) -> Container:
    body = as_object(entry, where)
    if kind is ContainerKind.INIT and text_field(body, "restartPolicy", where) == "Always":
        kind = ContainerKind.SIDECAR
    resources = object_field(body, "resources", where)
    devices = _devices(resources, f"{where}.resources")
    name = text_field(body, "name", where)
    if devices and not name:
        raise InvalidRequestError(f"{where} has no name")
    return Container(name, kind, devices, resources)


def _devices(resources: JsonObject, where: str) -> dict[str, int]:
    limits = object_field(resources, "limits", where)
    requests = object_field(resources, "requests", where)
    found: dict[str, int] = {}
    for name in sorted(filter(_is_device, {*limits, *requests})):
        amounts = {
            _whole_amount(side[name], f"{where}.{label}[{name}]")
            for side, label in ((limits, "limits"), (requests, "requests"))
            if side.get(name) is not None
        }
        if len(amounts) > 1:
            raise InvalidRequestError(f"{name}: requests and limits differ; Kubernetes needs them equal")
        if any(amounts):
            found[name] = max(amounts)
    return found


def _is_device(resource: object) -> bool:
    return isinstance(resource, str) and (
        resource in _DEVICE_RESOURCES or resource.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
    )


def _whole_amount(value: object, where: str) -> int:
    amount = _quantity(value, where, parse_quantity)
    if amount < 0 or Fraction(amount).denominator != 1:
        raise InvalidRequestError(f"{where} must be a whole number, not {shown(value)}")
    return int(amount)


def _host_total(
    pod: JsonObject, needs: tuple[Container, ...], resource: str, allocated: Mapping[str, JsonObject]
) -> int:
    spec = object_field(pod, "spec", "pod")
    total = pod_total(needs, lambda container: _host_amount(container, resource, allocated))
    pod_level = object_field(object_field(spec, "resources", "spec"), "requests", "spec.resources")
    if pod_level.get(resource) is not None:
        total = _amount(pod_level, resource, "spec.resources.requests")
    return total + _amount(object_field(spec, "overhead", "spec"), resource, "spec.overhead")


def _host_amount(container: Container, resource: str, allocated: Mapping[str, JsonObject]) -> int:
    """While a resize is under way both the old and the new amount must be there."""
    where = f"container {shown(container.name)}"
    requests = object_field(container.resources, "requests", where)
    limits = object_field(container.resources, "limits", where)
    wanted = _amount(requests if requests.get(resource) is not None else limits, resource, where)
    return max(wanted, _amount(allocated.get(container.name, {}), resource, f"{where} as allocated"))


def _allocated_by_container(pod: JsonObject) -> dict[str, JsonObject]:
    status = object_field(pod, "status", "pod")
    found: dict[str, JsonObject] = {}
    for key in ("initContainerStatuses", "containerStatuses"):
        for i, entry in enumerate(list_field(status, key, "status")):
            where = f"status.{key}[{i}]"
            body = as_object(entry, where)
            found[text_field(body, "name", where)] = object_field(body, "allocatedResources", where)
    return found


def _amount(amounts: JsonObject, resource: str, where: str) -> int:
    value = amounts.get(resource)
    if value is None:
        return 0
    parse = quantity_milli if resource == "cpu" else quantity_value
    amount = _quantity(value, f"{where}: {resource}", parse)
    if amount < 0:
        raise InvalidRequestError(f"{where}: {resource} must not be negative")
    return int(amount)


def _quantity(value: object, where: str, parse: Callable[[str | float], int | Fraction]) -> int | Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidRequestError(f"{where} must be a quantity, not {shown(value)}")
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidRequestError(f"{where}: {error}") from None
