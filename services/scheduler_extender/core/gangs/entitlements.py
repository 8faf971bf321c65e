"""Which GPUReservations there are, when they count, and who may use them. Pure."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpuloom.catalog import load_catalog, slice_milli
from gpuloom.codec.custom.claims import gpu_reservation
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import parse_time
from gpuloom.model.claims import GpuReservation, ReservationState, ReservedRequest
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.names import ANNOTATION_RESERVATION
from services.scheduler_extender.core.gangs.guard import NOTHING, Entitlement

END_OF_TIME = datetime.max.replace(microsecond=0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reservation:
    """`created` is when Kubernetes got it."""

    spoken: GpuReservation
    created: datetime

    @property
    def name(self) -> str:
        return f"{self.spoken.meta.namespace}/{self.spoken.meta.name}"

    @property
    def start(self) -> datetime:
        return self.spoken.spec.start or self.created

    @property
    def end(self) -> datetime:
        spec = self.spoken.spec
        if spec.until is not None:
            return spec.until
        try:
            return self.start + timedelta(seconds=spec.ttl_s or 0)
        except OverflowError:
            return END_OF_TIME

    def state(self, now: datetime) -> ReservationState:
        if now >= self.end:
            return ReservationState.EXPIRED
        return ReservationState.ACTIVE if now >= self.start else ReservationState.PENDING

    def selects(self, pod: JsonObject) -> bool:
        metadata = metadata_of(pod)
        labels = metadata.get("labels")
        same = (metadata.get("namespace") or "default") == self.spoken.meta.namespace
        return same and self.spoken.spec.selector.matches(labels if isinstance(labels, dict) else {})


class ReservationBook:
    """As the informer shows them. One that can't be read entitles nobody and keeps nothing."""

    def __init__(self) -> None:
        self._by_name: dict[str, Reservation] = {}
        self.unreadable: dict[str, str] = {}

    def observe(self, change: Change) -> None:
        metadata = metadata_of(change.object)
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        self._by_name.pop(name, None)
        self.unreadable.pop(name, None)
        if change.new is None:
            return
        try:
            created = parse_time(str(metadata.get("creationTimestamp")))
            self._by_name[name] = Reservation(gpu_reservation(change.new), created)
        except (InvalidRequestError, ValueError) as error:
            self.unreadable[name] = str(error)

    def all(self) -> list[Reservation]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def get(self, name: str) -> Reservation | None:
        return self._by_name.get(name)

    def entitlement_of(self, pod: JsonObject) -> Entitlement:
        """A pod that names a reservation may use that one alone, if it is selected by it."""
        metadata = metadata_of(pod)
        annotations = metadata.get("annotations")
        named = annotations.get(ANNOTATION_RESERVATION) if isinstance(annotations, dict) else None
        if named:
            found = self._by_name.get(f"{metadata.get('namespace') or 'default'}/{named}")
            return Entitlement(
                (found.name,) if found is not None and found.selects(pod) else (), insists=True
            )
        if not self._by_name:
            return NOTHING
        names = tuple(each.name for each in self.all() if each.selects(pod))
        return Entitlement(names) if names else NOTHING


def place_requests(wanted: ReservedRequest) -> list[PodRequest]:
    """What one reserved place is, in every form that pods may ask for it; those that we choose for first."""
    models = (wanted.gpu_model,) if wanted.gpu_model else ()
    architectures = (wanted.architecture,) if wanted.architecture else ()
    found = []
    for authority in (Authority.GPULOOM, Authority.NVIDIA):
        for milli in _millis(wanted.mig_profile):
            gpu = GpuRequest(
                RequestKind.MIG if wanted.mig_profile else RequestKind.WHOLE,
                authority,
                count=wanted.gpu_count,
                milli=milli,
                memory_mib=wanted.gpu_memory_mib,
                mig_profile=wanted.mig_profile,
                models=models,
                architectures=architectures,
            )
            found.append(PodRequest(gpu, container=""))
    return found


def _millis(profile: str | None) -> list[int]:
    """What a slice of this profile stands for, on the models that have it."""
    if profile is None:
        return [MILLI_PER_GPU]
    found = {
        slice_milli(each.memory_slices, model.mig_slices)
        for model in load_catalog().gpus
        for each in model.mig_profiles
        if each.name == profile and model.mig_slices
    }
    return sorted(found) or [MILLI_PER_GPU]


def whole_places(per_place: int, devices: Counter[str]) -> int:
    """How many places these are, by node: a place is on one node."""
    return sum(count // per_place for count in devices.values())
