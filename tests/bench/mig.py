"""How many slices of random demand get a place: ours, first-fit, NVIDIA's static layouts, and the optimum.

Pods come and go; one that finds no place when it comes is lost. Ours is the controller's own plan over the
very cards it would see, with unused slices cut anew at once. First-fit takes the lowest place of the lowest
GPU. The static layout is the balanced one that NVIDIA's MIG manager ships. The optimum knows all pods in
advance and may turn one away to take more later (an integer program, solved exactly).

    make bench-mig ARGS="--streams 1000 --gpus 2"
"""

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped, unused-ignore]
from scipy.sparse import coo_matrix  # type: ignore[import-untyped, unused-ignore]

from gpuloom.model.mig import MigPlacement, MigProfile
from gpuloom.model.node import PodRef
from gpuloom.placement.mig_geometry import Geometry, Layout, slices_of
from services.mig_controller.core.cards import Card, Slice, geometry_of
from services.mig_controller.core.plan import Options, plan
from services.mig_controller.core.wishes import Wish

MODELS = ("A100-SXM4-40GB", "H100-SXM5-80GB", "B200-SXM-180GB")
MIX = {1: 0.6, 2: 0.2, 3: 0.15, 4: 0.03, 7: 0.02}
BALANCED = (1, 1, 2, 3)
COLUMNS = ("optimum", "ours", "first-fit", "static")


@dataclass(frozen=True, slots=True)
class Pod:
    name: int
    profile: str
    comes_s: float
    goes_s: float


def a_stream(geometry: Geometry, rng: random.Random, gpus: int, load: float) -> list[Pod]:
    """Poisson arrivals so that the memory asked for is `load` of all there is, on average."""
    profiles = {size: plain(geometry, size) for size in MIX}
    mean_slices = sum(share * profiles[size].memory_slices for size, share in MIX.items())
    mean_s = 10.0
    rate = load * gpus * geometry.memory_slices / (mean_slices * mean_s)
    pods, at_s = [], 0.0
    for name in range(12 * gpus):
        at_s += rng.expovariate(rate)
        size = rng.choices(list(MIX), list(MIX.values()))[0]
        pods.append(Pod(name, profiles[size].name, at_s, at_s + rng.expovariate(1 / mean_s)))
    return pods


def plain(geometry: Geometry, size: int) -> MigProfile:
    fitting = [p for p in geometry.profiles if p.compute_slices == size]
    return min(fitting, key=lambda p: (p.memory_slices, len(p.name)))


class Fleet:
    """Who has which place of which GPU."""

    def __init__(self, geometry: Geometry, gpus: int) -> None:
        self.geometry = geometry
        self.held: list[dict[MigPlacement, Pod]] = [{} for _ in range(gpus)]

    def leave_until(self, now_s: float) -> None:
        for held in self.held:
            for place in [place for place, pod in held.items() if pod.goes_s <= now_s]:
                del held[place]


def ours(fleet: Fleet, pod: Pod) -> bool:
    cards = [
        Card(
            node_name="n", node_uid="n", uuid=f"GPU-{index}", index=index, model="", architecture="",
            geometry=fleet.geometry, cut=bool(held),
            slices=tuple(Slice(place, str(owner.name)) for place, owner in sorted(held.items())),
        )
        for index, held in enumerate(fleet.held)
    ]  # fmt: skip
    wish = Wish(PodRef("bench", str(pod.name), str(pod.name)), pod.profile)
    for cut in plan(cards, [wish], Options(delay_s=0.0, idle_ttl_s=0.0), 0.0).cuts:
        fleet.held[cut.card.index][cut.create[0]] = pod
        return True
    return False


def first_fit(fleet: Fleet, pod: Pod) -> bool:
    profile = fleet.geometry.profile(pod.profile)
    for held in fleet.held:
        places = () if profile is None else Layout(fleet.geometry, tuple(held)).places(profile)
        if places:
            held[places[0]] = pod
            return True
    return False


def static(fleet: Fleet, pod: Pod) -> bool:
    """Cut once and for all; a slice that nobody has is taken, also a larger one if none of the size is."""
    cut = balanced_layout(fleet.geometry)
    wanted = fleet.geometry.profile(pod.profile)
    options = [
        (slices_of(fleet.geometry, place).bit_count(), index, place)
        for index, held in enumerate(fleet.held)
        for place in cut
        if place not in held and place.profile == pod.profile and wanted is not None
    ]
    if not options:
        return False
    _, index, place = min(options)
    fleet.held[index][place] = pod
    return True


def balanced_layout(geometry: Geometry) -> tuple[MigPlacement, ...]:
    layout = Layout(geometry)
    for size in sorted(BALANCED, reverse=True):
        place = layout.best_place(plain(geometry, size))
        if place is not None:
            layout = layout.with_instance(place)
    return layout.placements


Policy = Callable[[Fleet, Pod], bool]


def accepted(geometry: Geometry, pods: list[Pod], gpus: int, policy: Policy) -> int:
    fleet, count = Fleet(geometry, gpus), 0
    for pod in pods:
        fleet.leave_until(pod.comes_s)
        count += policy(fleet, pod)
    return count


def optimum(geometry: Geometry, pods: list[Pod], gpus: int) -> int:
    """The most pods that anybody could have taken, knowing them all."""
    choices = [
        (number, gpu, start, profile.memory_slices)
        for number, pod in enumerate(pods)
        for gpu in range(gpus)
        if (profile := geometry.profile(pod.profile)) is not None
        for start in profile.starts
    ]
    rows, columns = [], []
    limits: dict[tuple[object, ...], int] = {}
    for column, (number, gpu, start, size) in enumerate(choices):
        keys: list[tuple[object, ...]] = [("pod", number)]
        for other in pods:
            # Two that overlap in time are both there when the later one comes.
            if pods[number].comes_s <= other.comes_s < pods[number].goes_s:
                keys += [(other.name, gpu, slot) for slot in range(start, start + size)]
        for key in keys:
            rows.append(limits.setdefault(key, len(limits)))
            columns.append(column)
    matrix = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(limits), len(choices)))
    found = milp(
        -np.ones(len(choices)),
        constraints=LinearConstraint(matrix.tocsr(), -np.inf, np.ones(len(limits))),
        integrality=np.ones(len(choices)),
        bounds=Bounds(0, 1),
        options={"time_limit": 20.0},
    )
    if found.x is None:
        raise RuntimeError(f"the optimum was not found: {found.message}")
    return round(float(-found.fun))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--load", type=float, default=0.6, help="memory asked for, of all there is")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    totals: Counter[tuple[str, str]] = Counter()
    ratios: dict[str, list[float]] = {model: [] for model in MODELS}
    plan_s = 0.0
    for number in range(arguments.streams):
        model = MODELS[number % len(MODELS)]
        geometry = geometry_of(model)
        if geometry is None:
            raise SystemExit(f"the catalogue has no MIG profiles of {model}")
        pods = a_stream(geometry, random.Random(f"{arguments.seed}/{number}"), arguments.gpus, arguments.load)
        best = optimum(geometry, pods, arguments.gpus)
        began = time.perf_counter()
        own = accepted(geometry, pods, arguments.gpus, ours)
        plan_s += time.perf_counter() - began
        totals[model, "pods"] += len(pods)
        totals[model, "optimum"] += best
        totals[model, "ours"] += own
        totals[model, "first-fit"] += accepted(geometry, pods, arguments.gpus, first_fit)
        totals[model, "static"] += accepted(geometry, pods, arguments.gpus, static)
        ratios[model].append(own / best if best else 1.0)
    report(totals, ratios, plan_s, arguments)


def report(
    totals: Counter[tuple[str, str]],
    ratios: dict[str, list[float]],
    plan_s: float,
    arguments: argparse.Namespace,
) -> None:
    pods = 12 * arguments.gpus
    _say(f"{arguments.streams} streams of {pods} pods on {arguments.gpus} GPUs, load {arguments.load}")
    _say(
        f"{'model':<16}{'pods':>7}" + "".join(f"{name:>11}" for name in COLUMNS) + "  of the optimum (worst)"
    )
    for model in (*MODELS, "all"):
        names = MODELS if model == "all" else (model,)
        asked = sum(totals[name, "pods"] for name in names)
        taken = {key: sum(totals[name, key] for name in names) for key in COLUMNS}
        found = [ratio for name in names for ratio in ratios[name]]
        shares = "".join(f"{taken[key] / asked:>11.4f}" for key in COLUMNS)
        share = f"{taken['ours'] / taken['optimum']:.4f} ({min(found):.3f})"
        _say(f"{model:<16}{asked:>7}{shares}  {share}")
    _say(f"a decision takes {plan_s / asked * 1e6:.0f} us; median {statistics.median(found):.4f}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
