"""What games are about and how long they are, and the small clusters that they are played in."""

from gpuloom.names import RESOURCE_NVIDIA_MIG_PREFIX
from tests.unit.scheduler_extender.builders import gpuloom_share, nvidia_cards

Arena = tuple[tuple[str, ...], tuple[dict[str, str], ...]]

THEMES = (
    "races",
    "binds",
    "ends",
    "reports",
    "takeovers",
    "failovers",
    "nodes",
    "modes",
    "holds",
    "gangs",
    "all",
)
LENGTHS = {"races": 20, "binds": 25, "takeovers": 35, "failovers": 35, "nodes": 35}
USUAL_LENGTH = 60
NAMES = ("a", "b", "c", "d")
EVERYTHING = 1000
INCLUDED = {"modes": {"ends", "takeovers"}, "holds": {"binds", "failovers"}, "gangs": {"binds", "failovers"}}
"""Themes that have all the moves of others, too."""

HALF, SLICE = gpuloom_share(500), gpuloom_share(501)
MIG = {f"{RESOURCE_NVIDIA_MIG_PREFIX}3g.20gb": "1"}
ONE, TWO = nvidia_cards(1), nvidia_cards(2)

# Small clusters, and pods that get in each other's way there.
ARENAS: tuple[Arena, ...] = (
    (("g1",), (gpuloom_share(1000), HALF)),
    (("e1",), (gpuloom_share(1000), HALF)),
    (("g1", "g2"), (gpuloom_share(700), gpuloom_share(300, 30_000), gpuloom_share(1000), SLICE)),
    (("v1",), (ONE, TWO)),
    (("v2",), (ONE, ONE, MIG)),
    (("v1", "v2"), (ONE, TWO)),
)
# Where nodes change their mode there are pods of both.
MIXED_ARENAS: tuple[Arena, ...] = (
    (("g1",), (gpuloom_share(1000), HALF, ONE)),
    (("v1",), (ONE, TWO, gpuloom_share(2000), HALF)),
    (("g2",), (ONE, HALF, SLICE, MIG)),
)


# Where GPULoom chooses devices one of them can be held.
HELD_ARENAS: tuple[Arena, ...] = (ARENAS[0], ARENAS[2])


PLANNED_ARENAS: tuple[Arena, ...] = (
    (("g1", "g2"), (gpuloom_share(1000),)),
    (("g1", "e1"), (gpuloom_share(1000), HALF)),
)


def of_theme(theme: str) -> tuple[Arena, ...]:
    if theme == "gangs":
        return PLANNED_ARENAS
    if theme == "holds":
        return HELD_ARENAS
    return MIXED_ARENAS if theme == "modes" else ARENAS
