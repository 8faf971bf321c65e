"""Whom to tell that a pod wastes its GPU, and whether what was recommended was followed. Pure.

What is waste the optimizer decides. What was told stands in the pod's own annotation, and what is waited for
in a document that outlives the controller; so nobody is told twice, whoever leads.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

import orjson

from gpuloom.kube.objects import JsonObject, ObjectKey, key_of, metadata_of, uid_of
from gpuloom.kube.parse import quantity_value
from gpuloom.model.money import usd
from gpuloom.model.optimization import PodWaste, WasteReport
from gpuloom.names import ANNOTATION_RECOMMENDATION
from services.controller.core.manifests import GPU_RESOURCE_PREFIXES, LABEL_WORKLOAD

MAX_PURSUITS = 1000
"""Some 300 bytes each, and an object has at most a megabyte."""
_VERSION = 1
_RENAMED = "-right-sized"
"""What the optimizer appends to the name of a new Job or pod, because the old one can't be changed."""
_TEMPLATE_HASH = "pod-template-hash"
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod on a node. `owner` is what a person would change; `told` what its annotation says."""

    key: ObjectKey
    uid: str
    owner: str
    asks: Mapping[str, str]
    told: str


@dataclass(frozen=True, slots=True)
class Pursuit:
    """What was recommended to an owner, and is waited for. `followers`: pods that ask for it by now."""

    namespace: str
    owner: str
    before: str
    recommended: str
    saving_nano_usd: int | None = None
    followers: int = 0
    """Of a pod."""

    @property
    def saved_nano_usd(self) -> int:
        return self.followers * (self.saving_nano_usd or 0)


@dataclass(frozen=True, slots=True)
class Followed:
    """A recommendation that a pod follows since the last round."""

    pursuit: Pursuit
    pod: GpuPod


@dataclass(frozen=True, slots=True)
class Round:
    """`wasteful`: how many pods are above the threshold; `untold`: whom nobody was told of, worst first."""

    wasteful: int
    untold: tuple[tuple[PodWaste, GpuPod], ...]


def gpu_pod(pod: JsonObject) -> GpuPod | None:
    """None if it has ended, or asks for no GPU."""
    if (pod.get("status") or {}).get("phase") in _ENDED:
        return None
    asks: dict[str, str] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if name.startswith(GPU_RESOURCE_PREFIXES):
                asks[name] = _sum(asks.get(name, "0"), str(amount))
    if not asks:
        return None
    annotations = metadata_of(pod).get("annotations") or {}
    return GpuPod(
        key_of(pod), uid_of(pod), owner_of(pod), asks, annotations.get(ANNOTATION_RECOMMENDATION, "")
    )


def owner_of(pod: JsonObject) -> str:
    """The same for all pods that one person's change would change, and for what replaces them."""
    metadata = metadata_of(pod)
    labels: Mapping[str, str] = metadata.get("labels") or {}
    if LABEL_WORKLOAD in labels:
        return f"GPUWorkload/{labels[LABEL_WORKLOAD]}"
    owners = metadata.get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    if owner is None:
        return f"Pod/{str(metadata.get('name', '')).removesuffix(_RENAMED)}"
    kind, name = str(owner.get("kind", "")), str(owner.get("name", ""))
    suffix = f"-{labels.get(_TEMPLATE_HASH, '')}"
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        return f"Deployment/{name.removesuffix(suffix)}"
    return f"{kind}/{name.removesuffix(_RENAMED)}"


def plan_round(report: WasteReport, pods: Mapping[str, GpuPod], threshold: float) -> Round:
    """`pods` are by UID. One that is not among them was not observed yet, or is gone."""
    wasteful = [waste for waste in report.pods if waste.score > threshold]
    found = ((waste, pods[waste.pod.uid]) for waste in wasteful if waste.pod.uid in pods)
    untold = tuple((waste, pod) for waste, pod in found if _topic_told(pod) != topic_of(waste))
    return Round(len(wasteful), untold)


def topic_of(waste: PodWaste) -> str:
    """What makes it news: another request, or another recommendation; not another score."""
    return f"{waste.now} to {waste.recommended}"


def annotation_of(waste: PodWaste, now: datetime) -> str:
    document = {
        "v": _VERSION,
        "pod": waste.pod.uid,
        "score": round(waste.score),
        "now": waste.now,
        "recommended": waste.recommended,
        "savingUsdPerMonth": None if waste.saving_nano_usd is None else f"{usd(waste.saving_nano_usd):.2f}",
        "confidence": round(waste.confidence, 2),
        "reason": waste.reason,
        "at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return orjson.dumps({key: value for key, value in document.items() if value is not None}).decode()


def message_of(waste: PodWaste) -> str:
    """For the Event, the log and whoever describes the pod."""
    what = f"waste score {waste.score:.0f}: {waste.reason}"
    if not waste.recommended:
        return what
    saving = "" if waste.saving_nano_usd is None else f", saves ${usd(waste.saving_nano_usd):.2f} a month"
    return (
        f"{what}; ask for {waste.recommended} instead of {waste.now}{saving} "
        f"(confidence {waste.confidence:.0%}); gpuloom optimize --pod {waste.pod.namespace}/{waste.pod.name} "
        "--yaml has the change"
    )


def pursued(pursuits: Sequence[Pursuit], waste: PodWaste, pod: GpuPod) -> tuple[Pursuit, ...]:
    """With this recommendation, which replaces an earlier one to the same owner. The oldest make room."""
    if not waste.recommended:
        return tuple(pursuits)
    new = Pursuit(pod.key[0], pod.owner, waste.now, waste.recommended, waste.saving_nano_usd)
    others = [one for one in pursuits if (one.namespace, one.owner) != (new.namespace, new.owner)]
    return (*others, new)[-MAX_PURSUITS:]


def follow(pursuits: Sequence[Pursuit], pods: Iterable[GpuPod]) -> tuple[tuple[Pursuit, ...], list[Followed]]:
    """The same with how many pods follow them now, and those that nobody followed before."""
    by_owner: defaultdict[tuple[str, str], list[GpuPod]] = defaultdict(list)
    wanted = {(one.namespace, one.owner) for one in pursuits}
    for pod in pods:
        if (pod.key[0], pod.owner) in wanted:
            by_owner[pod.key[0], pod.owner].append(pod)
    counted, news = [], []
    for pursuit in pursuits:
        resources = _resources(pursuit.recommended)
        following = [pod for pod in by_owner[pursuit.namespace, pursuit.owner] if pod.asks == resources]
        now = replace(pursuit, followers=len(following))
        counted.append(now)
        if following and not pursuit.followers:
            news.append(Followed(now, min(following, key=lambda pod: pod.key)))
    return tuple(counted), news


def saved_message(pursuit: Pursuit) -> str:
    pods = f"{pursuit.followers} pod{'s' if pursuit.followers > 1 else ''}"
    change = f"{pods} with {pursuit.recommended} instead of {pursuit.before}"
    what = f"{pursuit.owner} followed the recommendation: {change}"
    if pursuit.saving_nano_usd is None:
        return f"{what}; what that saves is not known, because there is no price"
    return f"{what} save ${usd(pursuit.saved_nano_usd):.2f} a month"


def pursuits_to_json(pursuits: Sequence[Pursuit]) -> str:
    return orjson.dumps({"v": _VERSION, "pursuits": [asdict(one) for one in pursuits]}).decode()


def pursuits_from_json(text: str) -> tuple[Pursuit, ...]:
    """Raise ValueError for what is none of ours."""
    document = orjson.loads(text)
    if not isinstance(document, dict) or document.get("v") != _VERSION:
        raise ValueError("it is of another version")
    try:
        return tuple(Pursuit(**one) for one in document["pursuits"])[-MAX_PURSUITS:]
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks something: {error}") from None


def _topic_told(pod: GpuPod) -> str | None:
    """None: nothing was told of this very pod."""
    try:
        document = orjson.loads(pod.told) if pod.told else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict) or document.get("pod") != pod.uid:
        return None
    return f"{document.get('now')} to {document.get('recommended')}"


def _resources(text: str) -> dict[str, str]:
    """Of a request as people write it: nvidia.com/gpu=1,…"""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: amount for name, _, amount in pairs}


def _sum(first: str, second: str) -> str:
    """In plain digits, as recommendations have it, where Kubernetes prints 20000 as 20k.

    What is no amount is kept, and equals nothing that is recommended.
    """
    try:
        return str(quantity_value(first) + quantity_value(second))
    except ValueError:
        return second
