"""Whatever happens in whatever order, a view that is kept shows what one made from scratch would.

Nodes and pods are few and get in each other's way, and what is observed differs from what was attempted in
every detail that counts.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.kube.cache import Change
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import NodeMode
from services.scheduler_extender.core.ledger.attempts import Attempt
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.state.cluster import ClusterState
from tests.effort import examples
from tests.unit.scheduler_extender.builders import (
    HandClock,
    a_gpu,
    a_holder,
    a_node,
    a_pod,
    a_ref,
    an_allocation,
    gpuloom_share,
    nvidia_cards,
    some_facts,
)
from tests.unit.scheduler_extender.builders import given as given_card
from tests.unit.scheduler_extender.consistency import miscounted, out_of_step

NODES = ("g", "v")
CARDS = 3
SETTLE_S = 30.0
STEPS = (
    *("attempt", "attempt", "attempt", "confirm", "confirm", "nearly confirm", "nearly confirm", "refuse"),
    *("bind", "end", "unbind", "vanish", "report", "report", "distrust", "replace", "wait", "count"),
)


@dataclass(frozen=True)
class Step:
    """What happens, to which pod and node. `variant` picks devices and amounts."""

    name: str
    pod: int
    node: int
    variant: int


class Cluster:
    """`g` gives devices out itself; on `v` the kubelet does, and what was given is a prediction."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.state = ClusterState(Ledger(SETTLE_S), lambda: False, self.clock)
        self._serial = dict.fromkeys(NODES, 0)
        for node in NODES:
            self._install(node)

    def take(self, step: Step) -> None:
        node, ref = NODES[step.node], a_ref(f"pod-{step.pod}")
        state, known = self.state, self.state.ledger.attempts_of(ref.uid)
        match step.name:
            case "attempt":
                state.ledger.begin(self._attempt(step))
            case "confirm" if known:
                self._bind(known[step.variant % len(known)])
            case "nearly confirm" if known:
                self._nearly_confirm(known[0], step.variant)
            case "bind":
                self._bind(self._attempt(step), has_record=step.variant % 4 != 0)
            case "refuse" if known:
                state.ledger.refused(known[step.variant % len(known)])
            case "end":
                self._bind(known[0] if known else self._attempt(step), phase="Succeeded")
            case "unbind" | "vanish":
                state.observe_pod(Change(a_pod(ref), a_pod(ref) if step.name == "unbind" else None))
            case "report" | "distrust":
                self._report(node, step, "silent" if step.name == "distrust" else "")
            case "replace":
                state.observe_node(Change(a_node(node, self._uid(node)), None))
                self._serial[node] += 1
                self._install(node)
            case "wait":
                self.clock.elapsed_s += SETTLE_S / 2
                state.take_reopened()
            case "count":
                state.entry_counts()

    def _attempt(self, step: Step) -> Attempt:
        node, ref = NODES[step.node], a_ref(f"pod-{step.pod}")
        first, is_pair = step.variant % CARDS, step.variant % 2
        milli = 1000 if node == "v" else 400 + 300 * is_pair
        devices = [given_card(f"GPU-{node}-{(first + i) % CARDS}", milli) for i in range(1 + is_pair)]
        allocation = an_allocation(ref, *devices, node_uid=self._uid(node), advisory=node == "v")
        # The pods of one number ask for one amount, mostly.
        cpu_milli = 1000 * (1 + step.pod + (step.variant == 0))
        return Attempt(ref, node, allocation, cpu_milli, memory_bytes=2**30)

    def _nearly_confirm(self, attempt: Attempt, variant: int) -> None:
        """With one thing otherwise than it was begun."""
        given_here = attempt.allocation
        match variant:
            case 0:
                cards = (given_card(f"GPU-{attempt.node_name}-2", 300),)
                self._bind(replace(attempt, allocation=replace(given_here, devices=cards)))
            case 1:
                fixed = replace(given_here, advisory=not given_here.advisory)
                self._bind(replace(attempt, allocation=fixed))
            case 2:
                self._bind(replace(attempt, cpu_milli=attempt.cpu_milli + 1000))
            case 3:
                self._bind(attempt, phase="Failed")
            case 4:
                self._bind(attempt, has_record=False)
            case _:
                self._bind(replace(attempt, node_name=NODES[attempt.node_name == "g"]))

    def _bind(self, attempt: Attempt, phase: str = "Running", has_record: bool = True) -> None:
        count = len(attempt.allocation.devices)
        asked = nvidia_cards(count) if attempt.node_name == "v" else gpuloom_share(1000 * count)
        asked = {**asked, "cpu": f"{attempt.cpu_milli}m", "memory": "1Gi"}
        record = attempt.allocation if has_record else None
        pod = a_pod(attempt.pod, asked, node=attempt.node_name, phase=phase, allocation=record)
        self.state.observe_pod(Change(None, pod))

    def _report(self, node: str, step: Step, untrusted: str = "") -> None:
        """In every second report that pod holds a card, and in every third one card is broken."""
        gpus = [a_gpu(f"GPU-{node}-{i}", i) for i in range(CARDS)]
        if step.variant % 3 == 2:
            gpus[0] = replace(gpus[0], health=GpuHealth.UNHEALTHY)
        card = f"GPU-{node}-{step.variant % CARDS}"
        holders = [a_holder(a_ref(f"pod-{step.pod}"), card)] if step.variant % 2 else []
        mode = NodeMode.NVIDIA if node == "v" else NodeMode.GPULOOM
        facts = some_facts(node, *gpus, uid=self._uid(node), mode=mode, holders=holders, untrusted=untrusted)
        self.state.observe_facts(self._uid(node), facts)

    def _install(self, node: str) -> None:
        self.state.observe_node(Change(None, a_node(node, self._uid(node))))
        self._report(node, Step("report", 0, 0, variant=0))

    def _uid(self, node: str) -> str:
        return f"uid-{node}-{self._serial[node]}"


@settings(max_examples=examples(400))
@given(
    st.lists(
        st.builds(Step, st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 1), st.integers(0, 5)),
        min_size=5,
        max_size=40,
    )
)
def test_a_kept_view_shows_what_one_made_from_scratch_would(steps: list[Step]) -> None:
    cluster = Cluster()

    for step in steps:
        cluster.take(step)

        assert not out_of_step(cluster.state, NODES)
    assert not miscounted(cluster.state)
