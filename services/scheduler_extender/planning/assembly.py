"""Puts the planning loops together."""

from dataclasses import dataclass

from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.runtime.app import App
from services.scheduler_extender.adapters.disruption import KubernetesBudgets
from services.scheduler_extender.adapters.evictions import KubernetesEvictions, PodAnnouncer
from services.scheduler_extender.adapters.owners import OwnerSizes
from services.scheduler_extender.adapters.reservations import KubernetesReservations
from services.scheduler_extender.adapters.sources import Sources
from services.scheduler_extender.config import PlanningConfig
from services.scheduler_extender.core.gangs.entitlements import ReservationBook
from services.scheduler_extender.core.gangs.guard import Guard
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.holds.holding import Holding
from services.scheduler_extender.leadership.leadership import LeadershipState
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.planning.gangs import GangLoop, GangParts
from services.scheduler_extender.planning.gathering import GatheringLoop, GatheringParts
from services.scheduler_extender.planning.planner import Planner
from services.scheduler_extender.planning.preemptions import Mode, PreemptionLoop, PreemptionParts
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.reservations import ReservationLoop, ReservationParts
from services.scheduler_extender.planning.server import PlanServer
from services.scheduler_extender.planning.sites import SiteBook
from services.scheduler_extender.planning.slices import at_once
from services.scheduler_extender.state.cluster import ClusterState

TURN_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class PlanningGrounds:
    """What the loops look at."""

    sources: Sources
    state: ClusterState
    evaluator: Evaluator
    guard: Guard
    reservations: ReservationBook


@dataclass(frozen=True, slots=True)
class PlanningMeans:
    """What they act by."""

    client: KubeClient
    holding: Holding
    leadership: LeadershipState
    recorder: EventRecorder
    metrics: ExtenderMetrics


def plan_server(app: App, config: PlanningConfig, seen: PlanningGrounds, means: PlanningMeans) -> PlanServer:
    """The loop runs as one of the app's from now on."""
    planner = build_planner(app, config, seen, means)
    objects = KubernetesReservations(means.client)
    return PlanServer(planner, seen.reservations, objects, means.leadership.unready_reason, app.clock)


def build_planner(app: App, config: PlanningConfig, seen: PlanningGrounds, means: PlanningMeans) -> Planner:
    state, ledger, pods = seen.state, seen.state.ledger, seen.sources.pods.informer
    promises = Promises(means.holding, ledger.holds, state.views, at_once)
    book = SiteBook(state.views, ledger, seen.sources.nodes, pods, seen.reservations.entitlement_of)
    evictions, announcer = KubernetesEvictions(means.client), PodAnnouncer(means.recorder)
    board = seen.guard.board
    gangs = GangLoop(
        GangParts(
            pods,
            ledger,
            book,
            promises,
            board,
            evictions,
            announcer,
            OwnerSizes(means.client, app.clock),
            state.wake_for,
            seen.evaluator.of,
            lambda: seen.evaluator.fleet.prices,
        ),
        app.clock,
    )
    reservations = ReservationLoop(
        ReservationParts(
            seen.reservations,
            book,
            pods,
            ledger,
            promises,
            means.holding,
            KubernetesReservations(means.client),
            seen.evaluator.of,
            state.wake_for,
        ),
        app.clock,
    )
    preemptions = PreemptionLoop(
        PreemptionParts(
            pods,
            ledger,
            book,
            promises,
            board,
            evictions,
            announcer,
            KubernetesBudgets(means.client),
            gangs,
            Mode(config.preemption),
            config.min_run_s,
            means.metrics.evictions.inc,
        ),
        app.clock,
    )
    gathering = GatheringLoop(
        GatheringParts(pods, ledger, book, promises, announcer, gangs, preemptions.tenants), app.clock
    )
    loops = (gathering, reservations, preemptions)
    planner = Planner(gangs, loops, means.leadership.unready_reason, app.clock, means.metrics)
    app.add_loop("planning", lambda: planner.run(TURN_INTERVAL_S))
    return planner
