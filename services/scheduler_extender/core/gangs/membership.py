"""What a pod says of its gang, from Kubernetes' JSON. Pure.

The label names the gang; nothing else makes a pod a member. How many members there are says an annotation,
or the object that owns the pod (`sizes.py`). What can't be read is a problem of the gang, never a guess.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuloom.codec.facts import MAX_LABEL_NAME_LENGTH
from gpuloom.codec.fields import shown
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.names import (
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_TIMEOUT,
    ANNOTATION_GANG_TOPOLOGY,
    LABEL_GANG,
)
from gpuloom.placement.gangs.gang import DomainWish

MOST_MEMBERS = 4096
MOST_SAID = 4
"""Of what contradicts itself so many are told: the text is sent for every node that is refused."""
DEFAULT_TIMEOUT_S = 300
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 5, 43_200
LABEL_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
"""On pods of a LeaderWorkerSet: each of its groups is a gang of its own."""

_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Membership:
    """`gang` is namespace/name. `size`, `said_s` and `wish` None: it is not said here.

    `said_s` is its timeout. `problem`: why it can't be read, if so.
    """

    gang: str
    size: int | None = None
    said_s: int | None = None
    wish: DomainWish | None = None
    problem: str = ""

    @property
    def timeout_s(self) -> int:
        return DEFAULT_TIMEOUT_S if self.said_s is None else self.said_s


def gang_of(pod: JsonObject) -> str:
    """As namespace/name; empty for a pod of no gang."""
    metadata = metadata_of(pod)
    labels = metadata.get("labels")
    name = labels.get(LABEL_GANG) if isinstance(labels, dict) else None
    if not isinstance(name, str) or not name or not isinstance(labels, dict):
        return ""
    group = labels.get(LABEL_GROUP)
    own = f"{name}/{group}" if isinstance(group, str) and group else name
    return f"{metadata.get('namespace') or 'default'}/{own}"


def says_size(pod: JsonObject) -> bool:
    annotations = metadata_of(pod).get("annotations")
    return isinstance(annotations, dict) and annotations.get(ANNOTATION_GANG_SIZE) is not None


def membership_of(pod: JsonObject) -> Membership | None:
    gang = gang_of(pod)
    if not gang:
        return None
    found = metadata_of(pod).get("annotations")
    annotations = found if isinstance(found, dict) else {}
    try:
        return Membership(
            gang,
            _whole(annotations, ANNOTATION_GANG_SIZE, 1, MOST_MEMBERS),
            _whole(annotations, ANNOTATION_GANG_TIMEOUT, LEAST_TIMEOUT_S, MOST_TIMEOUT_S),
            _wish(annotations.get(ANNOTATION_GANG_TOPOLOGY)),
        )
    except ValueError as error:
        return Membership(gang, problem=str(error))


def together(gang: str, members: Sequence[Membership]) -> Membership:
    """What the members of one gang say between them; where they contradict each other, that is a problem."""
    sizes = {member.size for member in members if member.size is not None}
    timeouts = {member.said_s for member in members if member.said_s is not None}
    wishes = {member.wish for member in members if member.wish is not None}
    problem = next((member.problem for member in members if member.problem), "")
    for of, said in (("sizes", sizes), ("timeouts", timeouts), ("topologies", wishes)):
        if len(said) > 1 and not problem:
            problem = f"its pods say different {of}: {', '.join(sorted(map(_said, said))[:MOST_SAID])}"
    said_s, wish = next(iter(timeouts), None), next(iter(wishes), None)
    return Membership(gang, next(iter(sizes), None), said_s, wish, problem)


def _said(value: object) -> str:
    if isinstance(value, DomainWish):
        return f"{value.key}:{'required' if value.required else 'preferred'}"
    return str(value)


def _whole(annotations: JsonObject, key: str, least: int, most: int) -> int | None:
    text = annotations.get(key)
    if text is None:
        return None
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{key} must be a whole number, not {shown(text)}")
    if not least <= int(text) <= most:
        raise ValueError(f"{key} must be {least} to {most}, not {text}")
    return int(text)


def _wish(text: object) -> DomainWish | None:
    if text is None or text == "":
        return None
    key, _, how = str(text).partition(":")
    if (
        len(key) > MAX_LABEL_NAME_LENGTH
        or _KEY.fullmatch(key) is None
        or how not in ("", "required", "preferred")
    ):
        raise ValueError(
            f"{ANNOTATION_GANG_TOPOLOGY} must be the key of a node label, with :required (the default) or "
            f":preferred behind it, not {shown(text)}"
        )
    return DomainWish(key, required=how != "preferred")
