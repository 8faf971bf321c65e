"""Which of all pods planning looks at every second, so that it need not look at all of them. Pure."""

from collections.abc import Iterator

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.names import ANNOTATION_RESERVATION
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.sizes import asks_for_gpus

PLANNED = "planned"
"""The name of the index; the values are below."""
GANG = "gang"
WAITING = "waiting"
RESERVED = "reserved"


def of_gang(name: str) -> str:
    """The value of the pods of one gang."""
    return f"{GANG} {name}"


def planned(pod: JsonObject) -> Iterator[str]:
    """A pod of a gang, and of which; one that has no node; one that says which reservation it uses.

    A pod without GPUs, such as a launcher, is nobody's member, whatever its template has put on it.
    """
    gang = gang_of(pod)
    if gang and asks_for_gpus(pod):
        yield GANG
        yield of_gang(gang)
    if not bound_node(pod) and not is_terminal(pod):
        yield WAITING
    annotations = metadata_of(pod).get("annotations")
    if isinstance(annotations, dict) and annotations.get(ANNOTATION_RESERVATION):
        yield RESERVED
