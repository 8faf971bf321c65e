"""Kubernetes pod JSON to what the pod asks of us.

Decides what a pod's resources and annotations mean, and refuses what has no clear meaning with a text that
says what to write instead. Whatever the JSON holds, the only error is InvalidRequestError.
Never decides where the pod goes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from gpuloom.catalog import load_catalog
from gpuloom.codec.allocation import MAX_DEVICES
from gpuloom.codec.environment import sees_only_its_allocation
from gpuloom.codec.fields import JsonObject, as_object, list_field, object_field, shown, text_field
from gpuloom.codec.resources import Container, ContainerKind, containers, cpu_and_memory, pod_total
from gpuloom.errors import InvalidRequestError
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import PodRef
from gpuloom.model.request import (
    Authority,
    GpuRequest,
    PluggedDevices,
    PodRequest,
    RequestKind,
    TopologyPreference,
)
from gpuloom.names import (
    ANNOTATION_ENFORCEMENT,
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_GPU_MODEL,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_TOPOLOGY,
    ANNOTATION_TOPOLOGY_REQUIRED,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)

MAX_KNOWN_REQUESTS = 512
MAX_KNOWN_BYTES = 16_384
MAX_LIST_ENTRIES = 32
MAX_NAME_LENGTH = 128

_READ_OF_SPEC = ("initContainers", "containers", "resources", "overhead", "runtimeClassName")
_READ_OF_STATUS = ("initContainerStatuses", "containerStatuses")
_READ_OF_ANNOTATIONS = (
    ANNOTATION_ENFORCEMENT,
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_GPU_MODEL,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_TOPOLOGY,
    ANNOTATION_TOPOLOGY_REQUIRED,
)
_OURS = frozenset({RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB})
_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
# "1g.5gb", "1g.5gb.me" (the plugin's spelling of "1g.5gb+me"), "1g.24gb-me".
_MIG_SUFFIX = re.compile(
    r"(?P<size>[0-9]{1,2}g\.[0-9]{1,4}gb)(?:\.(?P<with>[a-z]+(?:\.[a-z]+)*)|(?P<without>-[a-z]+))?"
)


def pod_request(pod: JsonObject) -> PodRequest | None:
    """What the pod asks for, or None if it asks for nothing that we manage."""
    content = _content(pod)
    known = _known_requests.get(content)
    if known is None:
        known = _Answer(_read_request(pod))
        if content:
            if len(_known_requests) >= MAX_KNOWN_REQUESTS:
                del _known_requests[next(iter(_known_requests))]
            _known_requests[content] = known
    return known.request


def bound_request(pod: JsonObject) -> PodRequest | None:
    """What a pod that is on its node asks for: its resources decide, whatever its annotations wish by now.

    They were for placing it, and anybody may have changed them since.
    """
    try:
        return pod_request(pod)
    except InvalidRequestError:
        metadata = object_field(pod, "metadata", "pod")
        placed = {key: value for key, value in metadata.items() if key != "annotations"}
        return pod_request({**pod, "metadata": placed})


def plugged_devices(pod: JsonObject) -> tuple[PluggedDevices, ...]:
    """What the pod asks of NVIDIA's device plugin, by kind, several of them too."""
    needs = containers(pod)
    resources = {name for container in needs for name in container.devices} - _OURS
    return tuple(_plugged(needs, resource) for resource in sorted(resources))


def _read_request(pod: JsonObject) -> PodRequest | None:
    needs = containers(pod)
    asking = [container for container in needs if container.devices]
    if not asking:
        return None
    names = {name for container in asking for name in container.devices}
    annotations = _annotations(pod)
    if names <= _OURS:
        gpu = _gpuloom_request(asking, annotations)
    elif names & _OURS:
        raise InvalidRequestError(
            "a pod asks either for nvidia.com/* or for gpuloom.dev/*, not for both: "
            "one node gives out GPUs in one way only"
        )
    else:
        gpu = _nvidia_request(needs, names, annotations)
    cpu_milli, memory_bytes = cpu_and_memory(pod, needs)
    runtime_class = text_field(object_field(pod, "spec", "pod"), "runtimeClassName", "spec") or None
    container = _first(asking).name
    return PodRequest(
        gpu=gpu,
        container=container,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        runtime_class=runtime_class,
        sees_only_its_allocation=runtime_class is not None and sees_only_its_allocation(pod, container),
    )


def pod_ref(pod: JsonObject) -> PodRef:
    metadata = object_field(pod, "metadata", "pod")
    name, uid = text_field(metadata, "name", "metadata"), text_field(metadata, "uid", "metadata")
    if not name or not uid:
        raise InvalidRequestError("a pod needs metadata.name and metadata.uid")
    return PodRef(namespace=text_field(metadata, "namespace", "metadata") or "default", name=name, uid=uid)


def is_terminal(pod: JsonObject) -> bool:
    """Whether the pod has ended; a deletionTimestamp alone does not end it.

    Anybody may write that: its containers may run on until its kubelet hears of it.
    """
    return text_field(object_field(pod, "status", "pod"), "phase", "status") in _TERMINAL_PHASES


def kubelet_reports_end(pod: JsonObject) -> bool:
    """Whether the pod has ended by the word of its kubelet, which alone reports the states of containers.

    A container that waits may be started again. A pod without any that its kubelet took in was refused by it:
    otherwise its first report names them all.
    """
    status = object_field(pod, "status", "pod")
    if not is_terminal(pod) or not text_field(status, "startTime", "status"):
        return False
    lasting = [state for key in _READ_OF_STATUS for state in _container_states(status, key)]
    if not lasting:
        return text_field(status, "phase", "status") == "Failed"
    others = _container_states(status, "ephemeralContainerStatuses")
    return all("terminated" in state for state in lasting) and not any("running" in state for state in others)


def bound_node(pod: JsonObject) -> str | None:
    """The name of the node the pod is bound to."""
    return text_field(object_field(pod, "spec", "pod"), "nodeName", "spec") or None


@dataclass(frozen=True, slots=True)
class _Answer:
    request: PodRequest | None


# A pod is read several times on its way, and its workload has many like it.
_known_requests: dict[bytes, _Answer] = {}


def _content(pod: JsonObject) -> bytes:
    """All that a request is read from, as a key; empty for what is too large to keep or no JSON."""
    try:
        spec, status = object_field(pod, "spec", "pod"), object_field(pod, "status", "pod")
        annotations = _annotations(pod)
        content = orjson.dumps(
            [
                [spec.get(key) for key in (*_READ_OF_SPEC, "ephemeralContainers")],
                [status.get(key) for key in _READ_OF_STATUS],
                {key: annotations[key] for key in _READ_OF_ANNOTATIONS if key in annotations},
            ]
        )
    except (InvalidRequestError, orjson.JSONEncodeError):
        return b""
    return content if len(content) <= MAX_KNOWN_BYTES else b""


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the annotations say about the kind of GPU, beside the resources."""

    models: tuple[str, ...]
    architectures: tuple[str, ...]
    topology: TopologyPreference
    topology_required: bool


def _container_states(status: JsonObject, key: str) -> list[JsonObject]:
    return [
        object_field(as_object(entry, f"status.{key}"), "state", f"status.{key}")
        for entry in list_field(status, key, "status")
    ]


def _nvidia_request(needs: tuple[Container, ...], names: set[str], annotations: JsonObject) -> GpuRequest:
    if len(names) > 1:
        some = " and ".join(sorted(names)[:4])
        raise InvalidRequestError(f"a pod asks for one kind of device, not for {some}")
    if ANNOTATION_MIG_PROFILE in annotations:
        raise InvalidRequestError(
            f"{ANNOTATION_MIG_PROFILE} goes with {RESOURCE_GPU_MILLI}; with NVIDIA's device plugin "
            f"ask for {RESOURCE_NVIDIA_MIG_PREFIX}<profile> instead"
        )
    (resource,) = names
    count = _bounded_count(pod_total(needs, lambda container: container.devices.get(resource, 0)), resource)
    whole = resource == RESOURCE_NVIDIA_GPU
    wishes = _wishes(annotations)
    return GpuRequest(
        kind=RequestKind.WHOLE if whole else RequestKind.MIG,
        authority=Authority.NVIDIA,
        count=count,
        mig_profile=None if whole else _profile_of_resource(resource),
        models=wishes.models,
        architectures=wishes.architectures,
        topology=wishes.topology,
        topology_required=wishes.topology_required,
    )


def _plugged(needs: tuple[Container, ...], resource: str) -> PluggedDevices:
    return PluggedDevices(
        kind="" if resource == RESOURCE_NVIDIA_GPU else _profile_of_resource(resource),
        lasting=sum(
            container.devices.get(resource, 0)
            for container in needs
            if container.kind is not ContainerKind.INIT
        ),
        most=pod_total(needs, lambda container: container.devices.get(resource, 0)),
    )


def _gpuloom_request(asking: list[Container], annotations: JsonObject) -> GpuRequest:
    if len(asking) > 1:
        raise InvalidRequestError(
            f"one container of a pod may ask for gpuloom.dev/*, not {len(asking)}; put the GPU work into one"
        )
    devices = asking[0].devices
    milli, memory_mib = devices.get(RESOURCE_GPU_MILLI, 0), devices.get(RESOURCE_GPU_MEMORY_MIB)
    if not milli:
        raise InvalidRequestError(f"{RESOURCE_GPU_MEMORY_MIB} needs {RESOURCE_GPU_MILLI} beside it")
    profile = _text(annotations, ANNOTATION_MIG_PROFILE)
    if profile is not None:
        kind, count = _slice(profile, milli, memory_mib), 1
    else:
        kind, count = _cards(milli)
    wishes = _wishes(annotations)
    return GpuRequest(
        kind=kind,
        authority=Authority.GPULOOM,
        count=_bounded_count(count, RESOURCE_GPU_MILLI),
        milli=MILLI_PER_GPU if kind is RequestKind.WHOLE else milli,
        memory_mib=memory_mib,
        mig_profile=profile,
        models=wishes.models,
        architectures=wishes.architectures,
        topology=wishes.topology,
        topology_required=wishes.topology_required,
        enforced=_enforced(annotations) and kind is RequestKind.SHARE,
    )


def _enforced(annotations: JsonObject) -> bool:
    value = _text(annotations, ANNOTATION_ENFORCEMENT)
    if value not in (None, "mps", "none"):
        raise _not_one_of(ANNOTATION_ENFORCEMENT, value, ("mps", "none"))
    return value == "mps"


def _cards(milli: int) -> tuple[RequestKind, int]:
    if milli < MILLI_PER_GPU:
        return RequestKind.SHARE, 1
    if milli % MILLI_PER_GPU:
        lower = milli // MILLI_PER_GPU * MILLI_PER_GPU
        raise InvalidRequestError(
            f"{RESOURCE_GPU_MILLI}: {milli} is neither a share of one GPU (1 to {MILLI_PER_GPU - 1}) "
            f"nor whole GPUs (a multiple of {MILLI_PER_GPU}, e.g. {lower} or {lower + MILLI_PER_GPU})"
        )
    return RequestKind.WHOLE, milli // MILLI_PER_GPU


def _slice(profile: str, milli: int, memory_mib: int | None) -> RequestKind:
    allowed = load_catalog().mig_milli(profile)
    if not allowed:
        raise InvalidRequestError(
            f"{ANNOTATION_MIG_PROFILE}: no known GPU has the MIG profile {shown(profile)}; write e.g. 1g.10gb"
        )
    if milli not in allowed:
        raise InvalidRequestError(
            f"{RESOURCE_GPU_MILLI} must be {_either(map(str, allowed))} for profile {profile}, not {milli}"
        )
    if memory_mib is not None:
        raise InvalidRequestError(
            f"a MIG slice has its own memory: leave out {RESOURCE_GPU_MEMORY_MIB} "
            f"beside {ANNOTATION_MIG_PROFILE}"
        )
    return RequestKind.MIG


def _profile_of_resource(resource: str) -> str:
    suffix = resource.removeprefix(RESOURCE_NVIDIA_MIG_PREFIX)
    match = _MIG_SUFFIX.fullmatch(suffix)
    if match is None:
        raise InvalidRequestError(
            f"{shown(resource)} does not name a MIG profile; write e.g. {RESOURCE_NVIDIA_MIG_PREFIX}1g.10gb"
        )
    extra = f"+{match['with']}" if match["with"] else match["without"] or ""
    return f"{match['size']}{extra}"


def _wishes(annotations: JsonObject) -> _Wishes:
    catalog = load_catalog()
    models: dict[str, None] = {}
    for name in _names(annotations, ANNOTATION_GPU_MODEL):
        # A model the catalogue lacks goes by the driver's name, so it is kept as it is written.
        models.update(dict.fromkeys(catalog.model_names(name) or (name,)))
    architectures: dict[str, None] = {}
    for name in _names(annotations, ANNOTATION_GPU_ARCHITECTURE):
        known = catalog.architecture(name)
        if known is None:
            raise _not_one_of(ANNOTATION_GPU_ARCHITECTURE, name, catalog.architectures)
        architectures[known] = None
    topology = _topology(_text(annotations, ANNOTATION_TOPOLOGY))
    required = _flag(annotations, ANNOTATION_TOPOLOGY_REQUIRED)
    if required and topology is TopologyPreference.NONE:
        raise InvalidRequestError(
            f"{ANNOTATION_TOPOLOGY_REQUIRED} needs {ANNOTATION_TOPOLOGY}: nvlink, numa or pcie"
        )
    return _Wishes(tuple(models), tuple(architectures), topology, required)


def _topology(value: str | None) -> TopologyPreference:
    if value is None:
        return TopologyPreference.NONE
    allowed = tuple(preference.value for preference in TopologyPreference)
    if value not in allowed:
        raise _not_one_of(ANNOTATION_TOPOLOGY, value, allowed)
    return TopologyPreference(value)


def _flag(annotations: JsonObject, name: str) -> bool:
    value = _text(annotations, name)
    if value not in (None, "true", "false"):
        raise _not_one_of(name, value, ("true", "false"))
    return value == "true"


def _names(annotations: JsonObject, annotation: str) -> tuple[str, ...]:
    value = _text(annotations, annotation)
    if value is None:
        return ()
    if len(value) > MAX_LIST_ENTRIES * MAX_NAME_LENGTH or value.count(",") >= MAX_LIST_ENTRIES:
        raise InvalidRequestError(f"{annotation} lists at most {MAX_LIST_ENTRIES} names")
    names = tuple(name.strip() for name in value.split(","))
    if not all(0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() for name in names):
        raise InvalidRequestError(f"{annotation} is a list of names with commas between, not {shown(value)}")
    return names


def _text(annotations: JsonObject, name: str) -> str | None:
    value = annotations.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError(f"annotation {name} must be text")
    return value


def _annotations(pod: JsonObject) -> JsonObject:
    return object_field(object_field(pod, "metadata", "pod"), "annotations", "metadata")


def _bounded_count(count: int, resource: str) -> int:
    if count > MAX_DEVICES:
        raise InvalidRequestError(f"{resource}: one pod gets at most {MAX_DEVICES} devices, not {count}")
    return count


def _first(asking: list[Container]) -> Container:
    """The main container that asks first; an init container only if no main one does."""
    return min(asking, key=lambda container: container.kind is not ContainerKind.MAIN)


def _not_one_of(name: str, value: object, allowed: tuple[str, ...]) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {_either(allowed)}, not {shown(value)}")


def _either(values: Iterable[str]) -> str:
    listed = list(values)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"
