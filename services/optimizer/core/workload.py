"""Which workload a pod belongs to. Pure.

Decides what "the same kind of workload" means: namespace, owner, image, the shape of its command, and what it
asks for. Names of pods and owners carry random and running parts, which are left out; so are a command's
values, because a run with another learning rate is like the one before.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import PodRef
from gpuloom.model.request import Authority, GpuRequest, RequestKind
from gpuloom.names import RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU

TYPE_LABEL = "gpu-autoscaler.io/workload-type"
OPTIMIZE_LABEL = "gpu-autoscaler.io/optimize"
SHARING_LABEL = "gpu-autoscaler.io/sharing"
TEMPLATE_HASH_LABEL = "pod-template-hash"

NEW_NAME_SUFFIX = "-right-sized"
"""Of a manifest that is recommended in place of a Job or a pod."""

_SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_MAX_WORDS = 16
_RANDOM_LENGTH = 5
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Owner:
    """What a person would change: the Deployment behind a ReplicaSet. `kind` empty: a bare pod."""

    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.kind else ""


@dataclass(frozen=True, slots=True)
class Signature:
    namespace: str
    owner_kind: str
    stem: str
    image: str
    command: str
    request: str

    @property
    def key(self) -> str:
        return self._hash(self.namespace, self.owner_kind, self.stem, self.image, self.command, self.request)

    @property
    def owner_key(self) -> str:
        """The same owner, whatever it runs and asks for."""
        return self._hash(self.namespace, self.owner_kind, self.stem)

    @property
    def image_key(self) -> str:
        """The same image and command, wherever it runs."""
        return self._hash(self.image, self.command)

    @staticmethod
    def _hash(*parts: str) -> str:
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of one pod without looking at its GPUs."""

    pod: PodRef
    owner: Owner
    signature: Signature
    request: GpuRequest
    container: str
    type_label: str = ""
    opted_out: bool = False
    may_share: bool = True
    serves: bool = False
    """A container of it listens on a port."""
    node_name: str = ""
    ended: bool = False


def workload_of(pod: JsonObject) -> Workload | None:
    """None if the pod asks for no GPU, or for something that has no clear meaning."""
    try:
        asked = pod_request(pod)
    except InvalidRequestError:
        return None
    if asked is None:
        return None
    metadata, spec = metadata_of(pod), _mapping(pod.get("spec"))
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    marks = {**_mapping(metadata.get("annotations")), **_mapping(metadata.get("labels"))}
    owner = _owner(metadata, marks)
    containers = [_mapping(each) for each in _list(spec.get("containers"))]
    main = next((each for each in containers if each.get("name") == asked.container), {})
    signature = Signature(
        namespace=namespace,
        owner_kind=owner.kind,
        stem=name_stem(owner.name or name),
        image=image_name(str(main.get("image", ""))),
        command=command_shape([*_list(main.get("command")), *_list(main.get("args"))]),
        request=request_text(asked.gpu),
    )
    return Workload(
        pod=PodRef(namespace, name, uid_of(pod)),
        owner=owner,
        signature=signature,
        request=asked.gpu,
        container=asked.container,
        type_label=str(marks.get(TYPE_LABEL, "")),
        opted_out=str(marks.get(OPTIMIZE_LABEL, "")).lower() == "false",
        may_share=str(marks.get(SHARING_LABEL, "")).lower() != "disabled",
        serves=any(each.get("ports") for each in containers),
        node_name=str(spec.get("nodeName") or ""),
        ended=_mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed"),
    )


def request_text(request: GpuRequest) -> str:
    """As people write it: nvidia.com/gpu=2, nvidia.com/mig-1g.10gb=1, gpuloom.dev/gpu-milli=500."""
    if request.kind is RequestKind.MIG and request.authority is Authority.NVIDIA:
        return f"nvidia.com/mig-{request.mig_profile}={request.count}"
    if request.authority is Authority.NVIDIA:
        return f"{RESOURCE_NVIDIA_GPU}={request.count}"
    milli = request.milli * (request.count if request.kind is RequestKind.WHOLE else 1)
    text = f"{RESOURCE_GPU_MILLI}={milli}"
    if request.kind is RequestKind.MIG:
        text += f",mig={request.mig_profile}"
    return f"{text},{RESOURCE_GPU_MEMORY_MIB}={request.memory_mib}" if request.memory_mib else text


def requested_gpus(request: GpuRequest) -> float:
    return request.count * request.milli / MILLI_PER_GPU


def name_stem(name: str) -> str:
    """Without running numbers and random endings: train-20260301-7xk2p is train.

    The object that a recommendation wrote is of the same kind as the one that it was written for.
    """
    parts = name.replace(NEW_NAME_SUFFIX, "").split("-")
    while len(parts) > 1 and _is_generated(parts[-1]):
        parts.pop()
    return "-".join(parts)


def image_name(image: str) -> str:
    """Without tag and digest."""
    plain = image.partition("@")[0]
    head, slash, last = plain.rpartition("/")
    return head + slash + last.partition(":")[0]


def command_shape(words: Sequence[object]) -> str:
    """The program and the names of its options, without their values."""
    texts = [str(word) for word in words][:_MAX_WORDS]
    if texts and texts[0].rpartition("/")[2] in _SHELLS and len(texts) > 2:
        texts = texts[2].split()[:_MAX_WORDS]
    kept = []
    for place, word in enumerate(texts):
        if word.startswith("-"):
            kept.append(word.partition("=")[0])
        elif place == 0 or word.endswith((".py", ".sh")):
            kept.append(_DIGITS.sub("", word.rpartition("/")[2]))
    return " ".join(kept)


def _is_generated(part: str) -> bool:
    if part.isdigit():
        return True
    return len(part) >= _RANDOM_LENGTH and part.isalnum() and any(letter.isdigit() for letter in part)


def _owner(metadata: JsonObject, marks: Mapping[str, object]) -> Owner:
    references = map(_mapping, _list(metadata.get("ownerReferences")))
    controller = next((each for each in references if each.get("controller")), None)
    if controller is None:
        return Owner()
    kind, name = str(controller.get("kind", "")), str(controller.get("name", ""))
    suffix = f"-{marks.get(TEMPLATE_HASH_LABEL, '')}"
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        return Owner("Deployment", name.removesuffix(suffix))
    return Owner(kind, name)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def workload_to_json(workload: Workload) -> dict[str, object]:
    """As it is kept; where it is now and whether it ended is for Kubernetes to say."""
    request, signature = workload.request, workload.signature
    return {
        "namespace": workload.pod.namespace,
        "name": workload.pod.name,
        "uid": workload.pod.uid,
        "ownerKind": workload.owner.kind,
        "ownerName": workload.owner.name,
        "stem": signature.stem,
        "image": signature.image,
        "command": signature.command,
        "kind": request.kind.value,
        "authority": request.authority.value,
        "count": request.count,
        "milli": request.milli,
        "memory": request.memory_mib,
        "profile": request.mig_profile,
        "container": workload.container,
        "type": workload.type_label,
        "optedOut": workload.opted_out,
        "mayShare": workload.may_share,
        "serves": workload.serves,
    }


def workload_from_json(document: Mapping[str, Any]) -> Workload:
    """Raise KeyError, TypeError or ValueError for what is no such document."""
    request = GpuRequest(
        kind=RequestKind(document["kind"]),
        authority=Authority(document["authority"]),
        count=int(document["count"]),
        milli=int(document["milli"]),
        memory_mib=document["memory"],
        mig_profile=document["profile"],
    )
    namespace, kind = str(document["namespace"]), str(document["ownerKind"])
    return Workload(
        pod=PodRef(namespace, str(document["name"]), str(document["uid"])),
        owner=Owner(kind, str(document["ownerName"])),
        signature=Signature(
            namespace,
            kind,
            str(document["stem"]),
            str(document["image"]),
            str(document["command"]),
            request_text(request),
        ),
        request=request,
        container=str(document["container"]),
        type_label=str(document["type"]),
        opted_out=bool(document["optedOut"]),
        may_share=bool(document["mayShare"]),
        serves=bool(document["serves"]),
    )
