"""Cards and wishes for tests of the controller."""

from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import PodRef
from gpuloom.placement.mig_geometry import Geometry
from services.mig_controller.core.cards import Card, Slice, geometry_of
from services.mig_controller.core.wishes import Wish

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
    return Slice(place(text), owner, False, "", None if owner else idle_since_s)


def a_card(name: str = "n1", *slices: Slice, index: int = 0, cut: bool = True, **more: object) -> Card:
    fields = {"owner": "", "closed": "", "pinned": False} | more
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
        owner=str(fields["owner"]),
        closed=str(fields["closed"]),
        pinned=bool(fields["pinned"]),
    )


def a_wish(name: str, profile: str = "1g.5gb", since_s: float = 0.0, priority: int = 0) -> Wish:
    return Wish(PodRef("team", name, f"uid-{name}"), profile, priority=priority, since_s=since_s)
