"""Which of all pods planning looks at every second, so that it need not look at all of them. Pure."""

from collections.abc import Iterator

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.names import ANNOTATION_RESERVATION
from services.scheduler_extender.core.gangs.membership import gang_of

PLANNED = "planned"
"""The name of the index; the values are below."""
GANG = "gang"
WAITING = "waiting"
RESERVED = "reserved"


def planned(pod: JsonObject) -> Iterator[str]:
    """A pod of a gang; one that has no node; one that says which reservation it uses or insists on."""
    if gang_of(pod):
        yield GANG
    if not bound_node(pod) and not is_terminal(pod):
        yield WAITING
    annotations = metadata_of(pod).get("annotations")
    if isinstance(annotations, dict) and annotations.get(ANNOTATION_RESERVATION):
        yield RESERVED
