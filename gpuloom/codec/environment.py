"""Whether a pod's containers can see no other GPUs than those of its allocation under NVIDIA's runtime.

That runtime shows a container the GPUs that NVIDIA_VISIBLE_DEVICES names, and an image may name them all. So
every container has to say it itself: the one that asks for GPUs by the annotation that comes with the
allocation, the others by one of the words that stand for no GPU.
"""

from gpuloom.codec.fields import JsonObject, as_object, list_field, object_field, text_field
from gpuloom.names import ANNOTATION_VISIBLE_DEVICES

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_NO_GPU = frozenset({"void", "none"})
_FROM_ALLOCATION = f"metadata.annotations['{ANNOTATION_VISIBLE_DEVICES}']"


def sees_only_its_allocation(pod: JsonObject, asking: str) -> bool:
    """`asking` is the container that gets the devices. Raise InvalidRequestError for what is no pod."""
    spec = object_field(pod, "spec", "pod")
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for number, entry in enumerate(list_field(spec, kind, "spec")):
            where = f"spec.{kind}[{number}]"
            container = as_object(entry, where)
            variable = _variable(container, where)
            if text_field(container, "name", where) == asking:
                if _source(variable, where) != _FROM_ALLOCATION:
                    return False
            elif variable.get("value") not in _NO_GPU:
                return False
    return True


def _variable(container: JsonObject, where: str) -> JsonObject:
    """The last one counts, as for the kubelet."""
    found: JsonObject = {}
    for number, entry in enumerate(list_field(container, "env", where)):
        variable = as_object(entry, f"{where}.env[{number}]")
        if variable.get("name") == VARIABLE:
            found = variable
    return found


def _source(variable: JsonObject, where: str) -> object:
    source = object_field(variable, "valueFrom", where)
    return object_field(source, "fieldRef", where).get("fieldPath")
