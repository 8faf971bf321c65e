"""`python -m tests.bench.autoscaler.week`: a week of autoscaling in simulated time, on its own core.

Ten days are played, the first three only to have a history. Pods come at office hours; machines take five
minutes to be ready; spot machines are taken back now and then, and what ran there starts again. Prices are
those of a made-up but proportionate market. The same days are played with and without each feature.
"""

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from gpuloom.catalog import load_catalog
from gpuloom.model.claims import ClaimOffering, ClaimState, GpuNodeClaim, GpuNodeClaimSpec
from gpuloom.model.objects import ObjectMeta
from gpuloom.model.policies import (
    AutoscalingPolicy,
    AutoscalingPolicySpec,
    CapacityType,
    CloudProvider,
    NodePool,
)
from services.autoscaler.core.buying.filling import MachineForm, Stencils
from services.autoscaler.core.buying.offerings import Offering, book_of
from services.autoscaler.core.buying.pending import PendingPod
from services.autoscaler.core.buying.plan import Effort
from services.autoscaler.core.buying.simulation import SimulatedNode
from services.autoscaler.core.buying.table import Market, estimated_price, offering_table
from services.autoscaler.core.forecasting.forecast import forecast
from services.autoscaler.core.forecasting.series import Sample
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.machines import CloudView, PricedOffering
from services.autoscaler.core.scaling.policies import Effective
from services.autoscaler.core.scaling.scale_down import (
    DownSettings,
    NodeLoad,
    Resident,
    UseBook,
    decide_scale_down,
)
from services.autoscaler.core.scaling.scale_up import Pressure, Situation, decide_scale_up
from tests.unit.autoscaler.builders import a_pod

MONDAY = datetime(2026, 11, 9, tzinfo=UTC)
DAYS, COUNTED_DAYS = 10, 7
TICK = timedelta(minutes=2)
READY_AFTER = timedelta(minutes=5)
INTERRUPTIONS_AN_HOUR = 0.01
TYPES = ("g5.xlarge", "g5.12xlarge", "g5.48xlarge")
ZONES = ("zone-a", "zone-b", "zone-c")
TIERS = (CapacityType.SPOT, CapacityType.ON_DEMAND)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    spot: bool = True
    gives_back: bool = True
    predicts: bool = True


VARIANTS = (
    Variant("everything"),
    Variant("no forecast", predicts=False),
    Variant("no spot", spot=False),
    Variant("nothing given back", gives_back=False),
)


@dataclass(slots=True)
class Job:
    pod: PendingPod
    minutes: float
    left: float
    came: datetime
    node: str = ""
    waited: float = 0.0


@dataclass(slots=True)
class Tally:
    nano_usd: float = 0.0
    node_hours: float = 0.0
    waits: list[float] = field(default_factory=list)
    interruptions: int = 0
    lost_minutes: float = 0.0
    nodes: list[int] = field(default_factory=list)
    demand: list[float] = field(default_factory=list)


class Week:
    def __init__(self, variant: Variant, seed: int) -> None:
        self.variant = variant
        self.tally = Tally()
        self._chance = Random(seed)
        self._spot_chance = Random(seed + 1)
        self._now = MONDAY
        self._jobs: list[Job] = []
        self._claims: dict[str, GpuNodeClaim] = {}
        self._offerings: dict[str, Offering] = {}
        self._made = 0
        self._use = UseBook(600)
        self._history: deque[Sample] = deque(maxlen=8 * 720)
        self._last_up: datetime | None = None
        self._last_down: datetime | None = None
        self._stencils = Stencils(MachineForm())
        pools = (NodePool("pool", instance_types=TYPES),)
        spec = AutoscalingPolicySpec(CloudProvider.SIMULATED, pools=pools, spot=variant.spot)
        self._policy = Effective(AutoscalingPolicy(ObjectMeta("week"), spec), {})
        self._market = Market(CloudView(CloudProvider.SIMULATED), tuple(_offered()))

    def play(self) -> Tally:
        while self._now < MONDAY + timedelta(days=DAYS):
            self._arrive()
            self._interrupt()
            nodes = self._place()
            self._decide(nodes)
            self._count(nodes)
            self._pass_time()
        self.tally.waits += [job.waited for job in self._jobs if not job.node]
        return self.tally

    def _arrive(self) -> None:
        at_work = self._now.weekday() < 5 and 9 <= self._now.hour < 17
        for _ in range(_poisson(self._chance, (24.0 if at_work else 3.0) * TICK / timedelta(hours=1))):
            self._made += 1
            milli = self._chance.choices((500, 1000, 4000), (15, 70, 15))[0]
            pod = replace(a_pod(f"job-{self._made}", milli=milli, cpu="2"), since=self._now)
            minutes = self._chance.expovariate(1 / 60)
            self._jobs.append(Job(pod, minutes, minutes, self._now))

    def _interrupt(self) -> None:
        hours = TICK / timedelta(hours=1)
        for name, claim in list(self._claims.items()):
            on_spot = claim.spec.offering.capacity_type is CapacityType.SPOT
            if on_spot and life.is_live(claim) and self._spot_chance.random() < INTERRUPTIONS_AN_HOUR * hours:
                self._end(name, interrupted=True)
                for job in self._jobs:
                    if job.node == name:
                        self.tally.lost_minutes += job.minutes - job.left
                        job.node, job.left = "", job.minutes
                        job.pod = replace(job.pod, since=self._now)
                self.tally.interruptions += 1

    def _end(self, name: str, *, interrupted: bool = False) -> None:
        claim = self._claims[name]
        status = claim.status
        if interrupted:
            status = life.with_condition(
                status, life.CONDITION_INTERRUPTED, True, "SpotNotice", "", now=self._now
            )
        self._claims[name] = replace(claim, status=life.gone(status, self._now))

    def _place(self) -> dict[str, SimulatedNode]:
        nodes = {}
        for name, claim in self._claims.items():
            if not life.is_live(claim):
                continue
            asked = claim.status.requested or self._now
            if claim.status.gpu_ready is None and self._now - asked >= READY_AFTER:
                status = replace(
                    claim.status, state=ClaimState.GPU_READY, gpu_ready=self._now, node_name=name
                )
                self._claims[name] = replace(claim, status=status)
            nodes[name] = self._stencils.node(self._offerings[name], name)
        for job in self._jobs:
            if job.node:
                nodes[job.node].take(job.pod)
        for job in self._jobs:
            ready = (name for name in nodes if self._claims[name].status.gpu_ready is not None)
            if not job.node:
                job.node = next((name for name in ready if not nodes[name].take(job.pod)), "")
                if job.node:
                    job.waited = (self._now - job.came) / timedelta(minutes=1)
                    self.tally.waits.append(job.waited)
        return nodes

    def _decide(self, nodes: dict[str, SimulatedNode]) -> None:
        live = [claim for claim in self._claims.values() if life.is_live(claim)]
        book = book_of(self._claims.values(), self._now)
        table = offering_table(self._policy.policy.spec, self._market, load_catalog(), book, self._now)
        pending = [job.pod for job in self._jobs if not job.node]
        seen = Situation(
            self._policy,
            live,
            pending,
            list(nodes.values()),
            table,
            self._now,
            self._last_up,
            book.interruption_rate,
            self._pressure(),
            effort=Effort(restarts=1),
        )
        up = decide_scale_up(seen)
        if up.nodes:
            self._last_up = self._now
            for node in up.nodes:
                self._buy(node.offering)
            return
        self._use.observe(self._now, {name: self._load_of(name) for name in nodes})
        if self.variant.gives_back:
            loads = [self._node_load(name, node) for name, node in nodes.items()]
            down = decide_scale_down(seen, loads, [], DownSettings(), self._last_down)
            if down.claim is not None and not any(job.node == down.claim.meta.name for job in self._jobs):
                self._last_down = self._now
                self._end(down.claim.meta.name)

    def _load_of(self, name: str) -> tuple[float, bool]:
        busy = any(job.node == name for job in self._jobs)
        return (0.8 if busy else 0.0, busy)

    def _node_load(self, name: str, node: SimulatedNode) -> NodeLoad:
        residents = [Resident(job.pod, str(job.pod.ref), True) for job in self._jobs if job.node == name]
        return NodeLoad(
            self._claims[name], node, residents, self._use.mean_use(name), self._use.quiet_since(name)
        )

    def _pressure(self) -> Pressure:
        if not self.variant.predicts or self._now.minute % 10:
            return self._warm
        wanted = list(self._history)
        most = max((one.value for one in wanted), default=0.0)
        found = forecast(wanted, self._now, timedelta(minutes=30), UTC, max(1.0, 0.15 * most))
        self._warm = Pressure()
        have = sum(one.spec.gpu_count for one in self._claims.values() if life.is_live(one))
        if found is not None and found.confidence > 0.7 and found.upper > 0.7 * have:
            self._warm = Pressure(floor_gpus=round(found.upper), floor_reason="a forecast wants it")
        return self._warm

    _warm = Pressure()

    def _buy(self, offering: Offering) -> None:
        self._made += 1
        name = f"node-{self._made}"
        key = offering.key
        spec = GpuNodeClaimSpec(
            "week",
            "pool",
            ClaimOffering(key.instance_type, key.capacity_type, key.zone),
            offering.instance.gpu.name,
            offering.instance.gpu_count,
            name,
        )
        status = replace(life.requested(self._now, offering.nano_usd_per_hour), launched=self._now)
        self._claims[name] = GpuNodeClaim(ObjectMeta(name), spec, status)
        self._offerings[name] = offering

    def _count(self, nodes: dict[str, SimulatedNode]) -> None:
        demand = sum(job.pod.request.gpu.count * job.pod.request.gpu.milli / 1000 for job in self._jobs)
        self._history.append(Sample("gpu-demand", self._now, demand))
        if self._now < MONDAY + timedelta(days=DAYS - COUNTED_DAYS):
            self.tally.waits.clear()
            self.tally.interruptions, self.tally.lost_minutes = 0, 0.0
            return
        hours = TICK / timedelta(hours=1)
        self.tally.nano_usd += sum(self._offerings[name].nano_usd_per_hour for name in nodes) * hours
        self.tally.node_hours += len(nodes) * hours
        self.tally.nodes.append(sum(self._offerings[name].instance.gpu_count for name in nodes))
        self.tally.demand.append(demand)

    def _pass_time(self) -> None:
        self._now += TICK
        for job in self._jobs:
            job.left -= TICK / timedelta(minutes=1) if job.node else 0.0
        self._jobs = [job for job in self._jobs if job.left > 0]
        cut = self._now - timedelta(days=1)
        self._claims = {
            name: one
            for name, one in self._claims.items()
            if one.status.gone is None or one.status.gone > cut
        }


def report(seed: int, picture: Path | None) -> Iterator[str]:
    yield f"{COUNTED_DAYS} days, ticks of {TICK.seconds // 60} min, seed {seed}"
    titles = ("", "USD", "node hours", "wait mean", "wait p95", "interruptions", "lost min")
    yield " ".join(f"{title:>18}" for title in titles)
    tallies = {}
    for variant in VARIANTS:
        tally = tallies[variant.name] = Week(variant, seed).play()
        waits = sorted(tally.waits) or [0.0]
        figures = (
            f"{tally.nano_usd / 1e9:.0f}",
            f"{tally.node_hours:.0f}",
            f"{sum(waits) / len(waits):.2f}",
            f"{waits[int(len(waits) * 0.95) - 1]:.1f}",
            str(tally.interruptions),
            f"{tally.lost_minutes:.0f}",
        )
        yield " ".join(f"{figure:>18}" for figure in (variant.name, *figures))
    if picture is not None:
        picture.write_text(drawn(tallies), encoding="utf-8")
        yield f"picture: {picture}"


def drawn(tallies: dict[str, Tally]) -> str:
    """GPUs that were there, and GPUs that were wanted, over the week, one strip for each variant."""
    width, height, gap = 1000, 120, 30
    parts = []
    most = max(max(tally.nodes + [round(one) for one in tally.demand]) for tally in tallies.values())
    for place, (name, tally) in enumerate(tallies.items()):
        top = place * (height + gap) + gap
        parts.append(f'<text x="4" y="{top - 6}" font-size="13" font-family="sans-serif">{name}</text>')
        for values, colour in ((tally.nodes, "#1f77b4"), (tally.demand, "#d62728")):
            points = " ".join(
                f"{at * width / len(values):.1f},{top + height - value * height / most:.1f}"
                for at, value in enumerate(values)
            )
            parts.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
    total = len(tallies) * (height + gap) + gap
    body = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}">{body}</svg>\n'


def _offered() -> Iterator[PricedOffering]:
    for name in TYPES:
        instance = load_catalog().instance("aws", name)
        for zone in ZONES:
            for tier in TIERS:
                yield PricedOffering(name, zone, tier, estimated_price(instance, tier))


def _poisson(chance: Random, mean: float) -> int:
    count, left = 0, chance.expovariate(1.0)
    while left < mean:
        count += 1
        left += chance.expovariate(1.0)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path, help="write the course of the week to this SVG file")
    given = parser.parse_args()
    for line in report(given.seed, given.picture):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
