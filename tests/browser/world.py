"""A cluster of any size with something of everything, as the services would tell of it, always changing.

Names, labels and reasons may be full of markup. Equal seeds give equal clusters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.autoscaling import (
    AutoscalerStanding,
    ClaimStanding,
    PolicyStanding,
    PoolStanding,
    ScalingRecord,
)
from gpuloom.model.claims import HoldOwner
from gpuloom.model.cost import (
    BudgetReport,
    CostAmounts,
    CostAnswer,
    CostLine,
    CostSummary,
    MechanismSaving,
    SavingsReport,
)
from gpuloom.model.explanation import Change, Explanation, Judgement, NearMiss, PodStanding, ReasonCount
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.ledger import Decision, Hold, NodeLedger, NodeScore, Verdict
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.mig_cards import MigCard, MigSlice
from gpuloom.model.node import Delivery, NodeMode, NodeState, PodRef
from gpuloom.model.optimization import PodWaste, WasteParts, WorkloadClass
from gpuloom.model.planning import GangReport, ReservationReport
from gpuloom.model.sharing import MigStage
from gpuloom.model.snapshot import NodeFacts, NodePlace, PodAllocation
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.model.topology import PcieLevel, Topology, pair_count
from services.console.core.money import budget_items, savings_item, series_items, summary_item
from services.console.core.nodes import node_item, topology_item, topology_key, usage_item
from services.console.core.placing import decision_item, explanation_json, pending_item
from services.console.core.scaling import (
    ScalingHistory,
    action_items,
    claim_items,
    plan_items,
    policy_items,
)
from services.console.core.sight import Rule, for_everybody
from services.console.core.state import Items, Json
from services.console.sections.ledger import ledger_item
from services.console.sections.planning import gang_item, reservation_item
from services.console.sections.slices import card_item
from services.console.sections.waste import waste_item

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
MODELS = (("H100-SXM5-80GB", 81920, 18), ("A100-SXM4-40GB", 40960, 12), ("L40S", 46068, 0))
SPACES = ("team-a", "team-b", "research", "search", "vision")
USD = 10**9
SECTIONS = (
    *("nodes", "usage", "topologies", "ledger", "decisions", "pending", "mig", "mig_waiting", "workloads"),
    *("gangs", "reservations"),
    *("money", "budgets", "costs", "savings", "waste"),
    *("policies", "claims", "plans", "actions", "scaling_history", "alerts"),
)
RULES: Mapping[str, Rule] = dict.fromkeys(SECTIONS, for_everybody)


class World:
    def __init__(self, nodes: int, gpus: int = 8, mark: str = "", seed: int = 1) -> None:
        self._chance = Random(seed)
        self._mark = mark
        self._history = ScalingHistory()
        self._now = datetime.now(UTC)
        self._decisions: list[Decision] = []
        self.facts = [self._node(number, gpus) for number in range(nodes)]
        # Of a large cluster only what GPUs do is made anew: the cost of the making is none of the console's.
        self._nodes = {facts.state.node_uid: node_item(facts) for facts in self.facts}
        topologies = (facts.state.topology for facts in self.facts)
        self._topologies = {topology_key(one): topology_item(one) for one in topologies if one is not None}
        self._layouts = dict(self._cards())
        for minutes in range(60, 0, -1):
            self._history.note(self._now - timedelta(minutes=minutes), self._standing(minutes))

    def step(self) -> None:
        """What a GPU does changes every second, and now and then something is decided."""
        self._now = datetime.now(UTC)
        self.facts = [self._used(facts) for facts in self.facts]
        for _ in range(2):
            self._decisions.append(self._decision(len(self._decisions)))
        self._history.note(self._now, self._standing(0))

    def sections(self) -> Mapping[str, Items]:
        nodes = {facts.state.node_uid: facts for facts in self.facts}
        standing = self._standing(0)
        kept = list(enumerate(self._decisions))[-300:]
        return {
            "nodes": self._nodes,
            "usage": {uid: usage_item(facts) for uid, facts in nodes.items()},
            "topologies": self._topologies,
            "ledger": {self.facts[0].state.node_name: self._ledger()},
            "gangs": {f"{number}": self._gang(number) for number in range(3)},
            "reservations": {"r": self._reservation()},
            "decisions": {f"{number:012d}": decision_item(one) for number, one in kept},
            "pending": dict(self._pending()),
            "mig": self._layouts,
            "mig_waiting": {
                "w": {**_named(self._pod(3)), "profile": "3g.40gb", "note": self._text("being made")}
            },
            "workloads": {"w": self._workload()},
            "policies": policy_items(standing),
            "claims": claim_items(standing),
            "plans": plan_items(()),
            "actions": action_items(self._actions()),
            "scaling_history": self._history.items(),
            "waste": {one.pod.uid: waste_item(one) for one in map(self._waste, range(6))},
            "alerts": {
                "a": {
                    "alert": "GPULoomGpuUnhealthy",
                    "severity": "warning",
                    "labels": {"node": self._text("n")},
                }
            },
            **self._money(),
        }

    def explained(self, pod: PodRef) -> Json:
        return explanation_json(self._explanation(pod))

    def recommended(self, pod: PodRef) -> Json:
        patch = self._text("spec:\n  template:\n    spec:\n      containers:\n      - name: main\n")
        waste = waste_item(replace(self._waste(0), pod=pod))
        return {**waste, "target": self._text("Deployment"), "is_patch": True, "yaml": patch, "applied": []}

    def _text(self, text: str) -> str:
        return f"{text}{self._mark}"

    def _pod(self, number: int) -> PodRef:
        space = SPACES[number % len(SPACES)]
        return PodRef(self._text(space), self._text(f"train-{number:05d}"), f"pod-{number}")

    def _node(self, number: int, gpus: int) -> NodeFacts:
        model, memory, links = MODELS[number % len(MODELS)]
        name = self._text(f"{model.split('-', 1)[0].lower()}-{number:04d}")
        cut = links == 12 and number % 2 == 1
        cards = tuple(self._gpu(number, index, (model, memory), cut) for index in range(gpus))
        pairs = pair_count(gpus)
        level = PcieLevel.NODE if links else PcieLevel.PHB
        topology = Topology(gpus, (level,) * pairs, (links,) * pairs, nvswitch=links > 0)
        spot = SpotNotice(SpotNoticeKind.INTERRUPTION, self._now + timedelta(seconds=110), self._text("aws"))
        state = NodeState(
            *(name, f"uid-{number}", NodeMode.GPULOOM, Delivery.NRI, cards, topology),
            spot=spot if number == 4 else None,
        )
        untrusted = (self._text("its agent has said nothing for 30 s"),) if number % 97 == 5 else ()
        place = NodePlace(
            region="eu",
            zone="eu-1",
            rack=self._text(f"rack-{number // 8 % 40:02d}"),
            instance_type="p5.48xlarge",
            capacity_type="spot" if number % 5 == 4 else "on-demand",
            labels=(("gpuloom.dev/pool", self._text(f"pool-{number % 3}")),),
        )
        return self._used(NodeFacts(state, untrusted, (), place, tuple(self._given(number, cards))))

    def _gpu(self, number: int, index: int, kind: tuple[str, int], cut: bool) -> Gpu:
        model, memory = kind
        slices = (
            MigInstance(MigPlacement(0, "3g.20gb"), 4, 20096),
            MigInstance(MigPlacement(4, "2g.10gb"), 2, 9856),
        )
        failing = number % 61 == 3 and index == 2
        return Gpu(
            *(f"GPU-{number:06d}-{index}", index, self._text(model), "hopper", memory),
            health=GpuHealth.UNHEALTHY if failing else GpuHealth.HEALTHY,
            health_reason=self._text("XID 79: fallen off the bus") if failing else "",
            numa_node=index // 4,
            mig_enabled=cut and index < 2,
            mig_instances=slices if cut and index < 2 else (),
        )

    def _given(self, number: int, cards: tuple[Gpu, ...]) -> Iterator[PodAllocation]:
        for card in cards:
            if self._chance.random() < 0.15:
                continue
            share = self._chance.choice((1000, 1000, 500, 250))
            mig = card.mig_instances[0].placement if card.mig_instances else None
            given = AllocatedDevice(DeviceRef(card.uuid, mig), share, card.memory_mib * share // 1000)
            yield PodAllocation(self._pod(number * 8 + card.index), self._text("main"), (given,))

    def _used(self, facts: NodeFacts) -> NodeFacts:
        held = {one.devices[0].device.gpu_uuid for one in facts.allocations}
        usage = tuple(self._reading(gpu, gpu.uuid in held) for gpu in facts.state.gpus)
        return replace(facts, state=replace(facts.state, usage=usage))

    def _reading(self, gpu: Gpu, held: bool) -> GpuUsage:
        busy = self._chance.betavariate(5, 2) if held else 0.0
        return GpuUsage(
            gpu.uuid, busy, int(gpu.memory_mib * (0.1 + busy * 0.8)), 80 + busy * 600, 35 + busy * 40
        )

    def _decision(self, number: int) -> Decision:
        nodes = [self._chance.choice(self.facts).state.node_name for _ in range(3)]
        scores = tuple(
            NodeScore(node, 91.0 - place, 95.0 - place * 7, 88.0 - place, 90.0 + place, 1.5)
            for place, node in enumerate(nodes)
        )
        if number % 4 == 3:
            return Decision(
                self._now, self._pod(number), Verdict.REFUSED, reason=self._text("no room on 12 nodes")
            )
        device = AllocatedDevice(DeviceRef(f"GPU-{number}"), 1000, 81920)
        return Decision(self._now, self._pod(number), Verdict.BOUND, nodes[0], (device,), "", scores)

    def _explanation(self, pod: PodRef) -> Explanation:
        node = self.facts[0].state.node_name
        judged = Judgement(
            len(self.facts),
            0,
            reasons=(
                ReasonCount(self._text("fewer than 8 free GPUs"), 40, True),
                ReasonCount(self._text("another model than H100"), 26, False),
            ),
            near_misses=(NearMiss(node, self._text("has 6 free GPUs of 8")),),
            changes=(Change(self._text("nvidia.com/gpu: 6 instead of 8"), 3, node),),
        )
        request = self._text("nvidia.com/gpu: 8, model H100")
        return Explanation(
            pod, PodStanding.REFUSED, request, judgement=judged, note=self._text("Judged are GPUs.")
        )

    def _pending(self) -> Iterator[tuple[str, Json]]:
        for number in range(7):
            pod, since = self._pod(9000 + number), self._now - timedelta(seconds=40 * number)
            yield pod.uid, pending_item(pod, since, self._text("no room"), self._explanation(pod))

    def _cards(self) -> Iterator[tuple[str, Json]]:
        for facts in self.facts[:60]:
            for gpu in facts.state.gpus:
                if gpu.mig_enabled:
                    slices = tuple(
                        MigSlice(
                            one.placement,
                            one.slices,
                            MigStage.IN_USE if place == 0 else MigStage.AVAILABLE,
                            str(self._pod(7)) if place == 0 else "",
                        )
                        for place, one in enumerate(gpu.mig_instances)
                    )
                    made = MigSlice(MigPlacement(6, "1g.5gb"), 1, MigStage.PARTITION_CREATED)
                    slices = (*slices, made) if gpu.index else slices
                    card = MigCard(
                        facts.state.node_name,
                        gpu.uuid,
                        gpu.index,
                        gpu.model,
                        MigStage.MIG_ENABLED,
                        8,
                        slices,
                        self._text("1g.5gb is being made") if gpu.index else "",
                    )
                    yield gpu.uuid, card_item(card)

    def _ledger(self) -> Json:
        pod, node = self._pod(9000), self.facts[0].state
        device = AllocatedDevice(DeviceRef(node.gpus[0].uuid), 1000, 81920)
        owner = HoldOwner("Pod", pod.name, pod.namespace, pod.uid)
        text = self._text("others leave for it")
        hold = Hold("promise-1", node.node_name, owner, text, node.node_uid, device, "scheduler_extender")
        return ledger_item(NodeLedger(node.node_name, node.node_uid, holds=(hold,)))

    def _gang(self, number: int) -> Json:
        phase = ("waiting", "reserved", "placed")[number]
        name, node = str(replace(self._pod(number), uid="")), self.facts[number].state.node_name
        why = self._text("fewer than 8 free GPUs with NVLink on one node") if number == 0 else ""
        return gang_item(GangReport(name, phase, 8, 8 - number, number, number, 1000, why, (node,)))

    def _reservation(self) -> Json:
        space, name = self._text("research"), self._text("demo")
        end = self._now + timedelta(hours=2)
        labels = {"team": self._text("a")}
        return reservation_item(
            ReservationReport(space, name, 8, 2, end=end, match_labels=labels, state="Active", reserved=1)
        )

    def _workload(self) -> Json:
        texts = {
            name: self._text(name)
            for name in ("namespace", "name", "model_name", "priority", "strategy", "job", "message")
        }
        created = self._now.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            **texts,
            "gpu_count": 4,
            "phase": "Running",
            "node": self.facts[0].state.node_name,
            "retries": 1,
            "created": created,
        }

    def _waste(self, number: int) -> PodWaste:
        return PodWaste(
            self._pod(number),
            self._text("Deployment/serve"),
            WasteParts(40.0, 22.0 - number, 0.0, 5.0),
            self._text("nvidia.com/gpu=2"),
            WorkloadClass.INFERENCE,
            0.07,
            self._text("gpuloom.dev/gpu-milli=300"),
            (900 - number * 70) * USD,
            0.8,
            self._text("at 7 % for 2 h"),
            self._now,
        )

    def _standing(self, minutes: int) -> AutoscalerStanding:
        ready = 12 + (60 - minutes) // 12
        policy = PolicyStanding(
            self._text("gpu"),
            "aws",
            True,
            False,
            ready,
            ready + 2,
            40,
            7 + minutes // 9,
            0.55 + 0.2 * ((minutes * 7 % 13) / 13),
            self._text("2 nodes are on their way"),
            0.0,
            120.0,
            0.82,
            0.9,
            (PoolStanding(self._text("spot"), ready, 0, 30, 1, ""),),
        )
        states = ("Requested", "Launched", "Registered", "GPUReady", "Draining")
        claims = tuple(
            ClaimStanding(
                self._text(f"claim-{number}"),
                self._text("spot"),
                "p5.48xlarge",
                "eu-1a",
                "spot",
                state,
                "",
                8,
                40 * USD,
                self._now - timedelta(minutes=number),
                self._text("waits for its agent"),
            )
            for number, state in enumerate(states)
        )
        return AutoscalerStanding((policy,), claims, 0.02)

    def _actions(self) -> tuple[ScalingRecord, ...]:
        return tuple(
            ScalingRecord(
                self._now.replace(microsecond=0) - timedelta(minutes=number),
                self._text("gpu"),
                kind,
                self._text("spot"),
                1,
                self._text("7 pods wait"),
                (),
                40 * USD,
            )
            for number, kind in enumerate(("scale-up", "scale-down", "spot-interruption"))
        )

    def _money(self) -> Mapping[str, Items]:
        costs: dict[str, Json] = {}
        for step, width in (("hour", timedelta(hours=1)), ("day", timedelta(days=1))):
            for dimension in ("namespace", "team"):
                costs |= series_items(self._bill(width, 24 if step == "hour" else 30), dimension, step)
        today = CostAmounts(3100 * USD, 1900 * USD, 700 * USD, 0, 500 * USD)
        start = self._now - timedelta(days=30)
        budget = BudgetReport(
            self._text("research"),
            "monthly",
            start,
            self._now + timedelta(days=9),
            50_000 * USD,
            41_000 * USD,
            54_000 * USD,
            50_500 * USD,
            58_000 * USD,
            self._text("Warning"),
            "block",
            ("80%",),
        )
        saved = SavingsReport(
            90_000 * USD,
            61_000 * USD,
            (
                MechanismSaving(self._text("spot"), 20_000 * USD, False),
                MechanismSaving("sharing", 9_000 * USD, True),
            ),
            start,
            self._now,
        )
        summary = CostSummary(412 * USD, 296_640 * USD, 720, len(self.facts), 1, today, today, start)
        return {
            "money": {"summary": summary_item(summary)},
            "budgets": budget_items((budget,)),
            "costs": costs,
            "savings": {"month": savings_item(saved)},
        }

    def _bill(self, width: timedelta, steps: int) -> CostAnswer:
        chance = Random(7)
        last = self._now.replace(minute=0, second=0, microsecond=0)
        groups = (*(self._text(space) for space in SPACES), "__idle__")
        lines = tuple(
            CostLine(last - width * step, (group,), CostAmounts(cost, cost * 6 // 10, cost * 4 // 10))
            for step in range(steps)
            for place, group in enumerate(groups)
            for cost in (int((60 - place * 8) * USD * chance.uniform(0.7, 1.2)),)
        )
        return CostAnswer(lines, CostAmounts(), last, last, True)


def _named(pod: PodRef) -> dict[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
