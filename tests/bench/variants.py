"""What is compared: kube-scheduler alone, beside extenders that decide nothing, and beside ours.

Pure. All variants use the scheduler configuration that we ship, so they differ only in what answers.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import yaml

from gpuloom.cli.scheduling.scheduler_config import SchedulerConfigOptions, render_scheduler_config
from gpuloom.errors import InvalidRequestError


class Variant(StrEnum):
    """NOOP filters to a shortlist and scores, and kube-scheduler binds; NOOP_BIND binds as well."""

    BARE = "bare"
    NOOP = "noop"
    NOOP_BIND = "noop-bind"
    OURS = "ours"


DO_NOTHING = (Variant.NOOP, Variant.NOOP_BIND)
_BIND_VERB = "bindVerb"


def parse_variants(text: str) -> tuple[Variant, ...]:
    """Raise InvalidRequestError if one is unknown or named twice."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in set(Variant)]
    if unknown:
        raise InvalidRequestError(f"no variant is called {unknown[0]!r}; there are {', '.join(Variant)}")
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"a variant is named twice in {text!r}")
    return tuple(Variant(name) for name in names)


def interleaved(variants: Sequence[Variant], rounds: int) -> Iterator[tuple[int, Variant]]:
    """Every variant once in every round, each round beginning with another.

    What is slow only because of what ran before it is then not always the same variant.
    """
    for number in range(1, rounds + 1):
        shift = (number - 1) % len(variants)
        for variant in (*variants[shift:], *variants[:shift]):
            yield number, variant


def scheduler_name(variant: Variant) -> str:
    return f"bench-{variant}"


def scheduler_config(variant: Variant, options: SchedulerConfigOptions) -> str:
    """The shipped configuration, without leader election: no second scheduler waits for this one's lease."""
    document = yaml.safe_load(render_scheduler_config(options))
    document["leaderElection"] = {"leaderElect": False}
    document["extenders"] = _extenders(variant, document["extenders"])
    return yaml.safe_dump(document, sort_keys=False)


def _extenders(variant: Variant, shipped: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if variant is Variant.BARE:
        return []
    left_out = {_BIND_VERB} if variant is Variant.NOOP else set()
    return [{key: value for key, value in entry.items() if key not in left_out} for entry in shipped]
