"""With what a card that is cut anyway is filled up, beyond what was asked for. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.model.mig import MigPlacement, MigProfile
from gpuloom.placement.mig_geometry import Layout

INFERENCE_OPTIMIZED = {1: 70, 2: 20, 3: 10}


@dataclass(frozen=True, slots=True)
class Strategy:
    """Shares of instances by their compute slices, in per cent; empty: nothing but what pods ask for."""

    name: str = "demand"
    mix: tuple[tuple[int, int], ...] = ()


DEMAND = Strategy()


def parse_strategy(text: str) -> Strategy:
    """demand, inference-optimized, or a mix such as 1g=50,2g=50. Raise ValueError."""
    if text == "demand":
        return DEMAND
    if text == "inference-optimized":
        return Strategy(text, tuple(sorted(INFERENCE_OPTIMIZED.items())))
    mix = {}
    for part in text.split(","):
        size, _, share = part.strip().partition("=")
        if not size.endswith("g") or not size[:-1].isdecimal() or not share.isdecimal():
            raise ValueError("must be demand, inference-optimized, or shares such as 1g=70,2g=20,3g=10")
        mix[int(size[:-1])] = int(share)
    if sum(mix.values()) != 100:
        raise ValueError("the shares must add up to 100")
    return Strategy(text, tuple(sorted(mix.items())))


def filled(layout: Layout, strategy: Strategy, existing: Mapping[int, int]) -> tuple[MigPlacement, ...]:
    """What to add to the layout so that all instances come close to the strategy's shares.

    `existing` counts the instances of the cluster by compute slices. Each time the size that lacks most of
    its share and still fits is added, where it leaves the most room to others.
    """
    added: list[MigPlacement] = []
    counts = Counter(dict(existing))
    profiles = plain_profiles(layout)
    while strategy.mix:
        total = sum(counts.values()) + 1
        lacking = sorted(
            (counts[size] - share * total / 100, size) for size, share in strategy.mix if size in profiles
        )
        place = next((p for _, size in lacking if (p := layout.best_place(profiles[size]))), None)
        if place is None:
            break
        added.append(place)
        layout = layout.with_instance(place)
        size = next(size for size, profile in profiles.items() if profile.name == place.profile)
        counts[size] += 1
    return tuple(added)


def plain_profiles(layout: Layout) -> dict[int, MigProfile]:
    """Of each number of compute slices the profile with the least memory and the shortest name."""
    found: dict[int, MigProfile] = {}
    for profile in sorted(layout.geometry.profiles, key=lambda p: (p.memory_slices, len(p.name), p.name)):
        found.setdefault(profile.compute_slices, profile)
    return found
