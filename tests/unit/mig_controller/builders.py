"""Cards and wishes for tests of the controller."""

from typing import Any

from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.placement.mig_geometry import Geometry
from services.mig_controller.core.cards import Card, Slice, geometry_of
from services.mig_controller.core.wishes import ShareWish, Wish

MODEL = "A100-SXM4-40GB"


def the_geometry(model: str = MODEL) -> Geometry:
    found = geometry_of(model)
    assert found is not None
    return found


def place(text: str) -> MigPlacement:
    """As in 3g.20gb@4."""
    profile, _, start = text.partition("@")
    return MigPlacement(int(start), profile)


def a_slice(text: str, owner: str = "", idle_since_s: float | None = 0.0) -> Slice:
    """`owner` as namespace/name of a pod; its UID is uid- and the name."""
    return Slice(place(text), owner, False, "", None if owner else idle_since_s, the_pod(owner))


def the_pod(owner: str) -> PodRef | None:
    namespace, slash, name = owner.partition("/")
    return PodRef(namespace, name, f"uid-{name}") if slash else None


def a_card(name: str = "n1", *slices: Slice, index: int = 0, cut: bool = True, **more: Any) -> Card:
    return Card(
        node_name=name,
        node_uid=f"uid-{name}",
        uuid=f"GPU-{name}-{index}",
        index=index,
        model=MODEL,
        architecture="ampere",
        geometry=the_geometry(),
        cut=cut,
        slices=slices,
        memory_mib=40960,
        **more,
    )


def a_wish(
    name: str, profile: str = "1g.5gb", since_s: float = 0.0, priority: int = 0, gang: str = ""
) -> Wish:
    pod = PodRef("team", name, f"uid-{name}")
    return Wish(pod, profile, priority=priority, since_s=since_s, gang=gang)


def a_share(name: str, milli: int = 250, since_s: float = 0.0, memory_mib: int | None = None) -> ShareWish:
    return ShareWish(PodRef("team", name, f"uid-{name}"), milli, memory_mib, since_s=since_s)


def a_pod(
    name: str, annotations: dict[str, str] | None = None, *, gang: str = "", owner: str = "ReplicaSet"
) -> dict[str, Any]:
    """It has a slice 1g.5gb. `annotations` without our prefix; `owner` is the kind of its controller."""
    milli = {"gpuloom.dev/gpu-milli": "125"}
    controller = {"kind": owner, "name": "o", "uid": "u", "controller": True}
    own = {f"gpuloom.dev/{key}": value for key, value in (annotations or {}).items()}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "labels": {"gpuloom.dev/gang": gang} if gang else {},
            "annotations": {"gpuloom.dev/mig-profile": "1g.5gb", **own},
            "ownerReferences": [controller] if owner else [],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": milli, "requests": milli}}],
        },
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    }
