"""Which pending pods wait for a slice that could be made, or for a card whose shares are limits. Pure."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from gpuloom.codec.fields import JsonObject, object_field
from gpuloom.codec.pod import bound_node, is_terminal, pod_ref, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import PodRef
from gpuloom.model.request import Authority, GpuRequest, RequestKind
from gpuloom.names import LABEL_GANG
from services.mig_controller.core.cards import Card
from services.mig_controller.core.destinations import ANYWHERE, Destination, destination_of


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod that waits for one slice. Empty `models` and `architectures`: any."""

    pod: PodRef
    profile: str
    models: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    priority: int = 0
    since_s: float = 0.0
    destination: Destination | None = ANYWHERE
    """None: it is not known to which nodes it can go."""
    gang: str = ""
    """As namespace/name, empty if it is in none."""
    milli: int = 0
    """What the slice stands for: the same profile can be another part of another model. 0: any."""

    def takes(self, card: Card) -> bool:
        return _takes(self, card) and self.milli in (0, card.milli_of(self.profile))

    @property
    def kind(self) -> Hashable:
        """The same for all that could have the same."""
        return self.profile, self.milli, self.models, self.architectures, self.destination


@dataclass(frozen=True, slots=True)
class ShareWish:
    """A pod that waits for a share that the driver keeps to its limits. `memory_mib` None: in proportion."""

    pod: PodRef
    milli: int
    memory_mib: int | None = None
    models: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    priority: int = 0
    since_s: float = 0.0
    destination: Destination | None = ANYWHERE
    """None: it is not known to which nodes it can go."""

    def takes(self, card: Card) -> bool:
        return _takes(self, card)

    @property
    def kind(self) -> Hashable:
        """As of a Wish."""
        return self.models, self.architectures, self.destination


def _takes(wish: Wish | ShareWish, card: Card) -> bool:
    return (
        (not wish.models or card.model in wish.models)
        and (not wish.architectures or card.architecture in wish.architectures)
        and (wish.destination is None or wish.destination.admits(card.node_name, card.place))
    )


def wish_of(pod: JsonObject, since_s: float) -> Wish | None:
    """The slice that this pod asks for, whether or not it waits; None if it asks for none cut on demand."""
    gpu = _request(pod)
    if gpu is None or gpu.kind is not RequestKind.MIG or gpu.mig_profile is None:
        return None
    return Wish(
        pod=pod_ref(pod),
        profile=gpu.mig_profile,
        models=gpu.models,
        architectures=gpu.architectures,
        priority=priority_of(pod),
        since_s=since_s,
        destination=destination_of(pod),
        gang=_gang_of(pod),
        milli=gpu.milli,
    )


def _gang_of(pod: JsonObject) -> str:
    try:
        name = object_field(object_field(pod, "metadata", "pod"), "labels", "pod").get(LABEL_GANG)
    except InvalidRequestError:
        return ""
    return f"{pod_ref(pod).namespace}/{name}" if isinstance(name, str) and name else ""


def share_wish_of(pod: JsonObject, since_s: float) -> ShareWish | None:
    """The share of a card with an MPS daemon that this pod insists on."""
    gpu = _request(pod)
    if gpu is None or not gpu.enforced:
        return None
    return ShareWish(
        pod=pod_ref(pod),
        milli=gpu.milli,
        memory_mib=gpu.memory_mib,
        models=gpu.models,
        architectures=gpu.architectures,
        priority=priority_of(pod),
        since_s=since_s,
        destination=destination_of(pod),
    )


def priority_of(pod: JsonObject) -> int:
    priority = object_field(pod, "spec", "pod").get("priority")
    return priority if isinstance(priority, int) else 0


def waits(pod: JsonObject) -> bool:
    """Whether somebody is to find a node for it now: it has none, has not ended, and is not held back."""
    try:
        metadata, spec = object_field(pod, "metadata", "pod"), object_field(pod, "spec", "pod")
        held_back = metadata.get("deletionTimestamp") or spec.get("schedulingGates")
        return not (held_back or bound_node(pod) or is_terminal(pod))
    except InvalidRequestError:
        return False


def _request(pod: JsonObject) -> GpuRequest | None:
    """Of what GPULoom itself gives out."""
    try:
        request = pod_request(pod)
    except InvalidRequestError:
        # The extender tells its owner what is wrong with it.
        return None
    return None if request is None or request.gpu.authority is not Authority.GPULOOM else request.gpu


def wishes_of(pods: Iterable[JsonObject], since_s: Mapping[str, float], now_s: float) -> tuple[Wish, ...]:
    """Those that wait, the most urgent first; `since_s` by pod UID, as the controller saw them first."""
    found = [wish for pod in pods if waits(pod) and (wish := wish_of(pod, now_s)) is not None]
    found = [replace(wish, since_s=since_s.get(wish.pod.uid, now_s)) for wish in found]
    return tuple(sorted(found, key=lambda wish: (-wish.priority, wish.since_s, str(wish.pod))))


def share_wishes_of(
    pods: Iterable[JsonObject], since_s: Mapping[str, float], now_s: float
) -> tuple[ShareWish, ...]:
    """As `wishes_of`."""
    found = [wish for pod in pods if waits(pod) and (wish := share_wish_of(pod, now_s)) is not None]
    found = [replace(wish, since_s=since_s.get(wish.pod.uid, now_s)) for wish in found]
    return tuple(sorted(found, key=lambda wish: (-wish.priority, wish.since_s, str(wish.pod))))
