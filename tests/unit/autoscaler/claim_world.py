"""A small world for crash tests: claims that outlive a crash, and clouds that forget nothing they did."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuloom.model.claims import ClaimOffering, ClaimState, GpuNodeClaim, GpuNodeClaimSpec
from gpuloom.model.objects import ObjectMeta
from gpuloom.model.policies import CapacityType, CloudProvider
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.claims import NodeFact, Timeouts
from services.autoscaler.core.lifecycle.machines import CloudView, Group, Instance, InstanceState, Order
from services.autoscaler.core.lifecycle.sweep import (
    Adopt,
    Ask,
    End,
    Forget,
    Record,
    Seen,
    Shrink,
    Step,
    sweep,
)

START = datetime(2026, 11, 18, tzinfo=UTC)
POOL, GROUP = "spot-pool", "gpu-spot-asg"
TIMEOUTS = Timeouts(launch_s=60, register_s=120, gpu_s=120, missing_s=10, keep_gone_s=3600)


class CrashError(Exception):
    """The process is gone; what it had done stays done."""


@dataclass
class World:
    """`grouped`: a cloud of groups without tokens. Calls are counted down to a crash before or after one."""

    grouped: bool
    now: datetime = START
    claims: dict[str, GpuNodeClaim] = field(default_factory=dict)
    machines: dict[str, Instance] = field(default_factory=dict)
    desired: int = 0
    capacity: bool = True
    bought: int = 0
    created: int = 0
    crash_in: int | None = None
    answers_lost: int = 0
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    hidden: str = ""
    """A machine that the cloud leaves out of its lists until the next sweep is over."""
    reclaimed: int = 0
    chosen_by_cloud: int = 0
    """Machines that ended because the group wanted fewer than it had: nobody drained those."""
    mapped: bool = True
    """Whether the settings name the group; its machines run on without."""
    ended_undrained: int = 0
    """Nodes whose machines were ended though nobody had drained them."""

    def create_claim(self) -> None:
        name = f"{POOL}-{self.created}"
        self.created += 1
        self._claim(name, name)

    def _claim(self, name: str, token: str) -> None:
        offering = ClaimOffering("p3.2xlarge", CapacityType.SPOT, None if self.grouped else "zone-a")
        spec = GpuNodeClaimSpec("policy", POOL, offering, "V100-SXM2-16GB", 1, token)
        self.claims.setdefault(name, GpuNodeClaim(ObjectMeta(name), spec))

    def view(self) -> CloudView:
        if not self.grouped:
            return CloudView(CloudProvider.SIMULATED, self._listed())
        group = Group(GROUP, POOL, self.desired, 1000) if self.mapped else Group("other", "other", 0, 0)
        return CloudView(CloudProvider.AWS, self._listed(), (group,))

    def _listed(self) -> tuple[Instance, ...]:
        if self.grouped and not self.mapped:
            return ()
        return tuple(one for name, one in self.machines.items() if name != self.hidden)

    def sweep(self) -> None:
        """One sweep; a crash ends it wherever it comes."""
        drained = frozenset(
            name for name, one in self.claims.items() if one.status.state is ClaimState.DRAINING
        )
        ordered = [self.claims[name] for name in sorted(self.claims)]
        seen = Seen(self.view(), ordered, self.nodes, self.now, drained, timeouts=TIMEOUTS)
        try:
            for step in sweep(seen):
                self._count_down()
                self._carry_out(step)
                self._count_down()
        except CrashError:
            self.crash_in = None
        self.hidden = ""

    def hide(self, place: int) -> None:
        names = sorted(self.machines)
        self.hidden = names[place % len(names)] if names else ""

    def reclaim(self, place: int) -> None:
        """As with spot: the machine is gone, and a group wants another for it."""
        names = sorted(self.machines)
        if names:
            del self.machines[names[place % len(names)]]
            self.reclaimed += 1

    def _count_down(self) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                raise CrashError

    def _carry_out(self, step: Step) -> None:
        match step:
            case Record(claim, status):
                self.claims[claim.meta.name] = replace(self.claims[claim.meta.name], status=status)
            case Ask(_, order):
                self._ask(order)
            case End(claim, instance):
                is_drained = claim.status.state is ClaimState.DRAINING or life.was_drained(claim)
                is_node = instance.provider_id.lower() in self.nodes
                self.ended_undrained += is_node and not (is_drained and claim.status.node_name)
                self._end(instance)
            case Shrink(_, size):
                self.desired = max(size, len(self._listed()))
            case Adopt(name, instance):
                self._claim(name, instance.token or instance.instance_id)
            case Forget(claim):
                self.claims.pop(claim.meta.name)

    def _ask(self, order: Order) -> None:
        if self.grouped:
            self.desired = max(self.desired, order.size)
        elif self.capacity and all(one.token != order.token for one in self.machines.values()):
            self._buy(order.token)

    def _end(self, instance: Instance) -> None:
        found = self.machines.get(instance.instance_id)
        if found is not None and found.state is not InstanceState.ENDING:
            self.machines[instance.instance_id] = replace(found, state=InstanceState.ENDING)
            self.desired = max(0, self.desired - 1)

    def _buy(self, token: str = "") -> None:
        name = f"i-{self.bought}"
        self.bought += 1
        self.machines[name] = Instance(
            name,
            f"aws:///us-west-2a/{name}",
            InstanceState.RUNNING,
            "p3.2xlarge",
            "us-west-2a",
            CapacityType.SPOT,
            POOL,
            GROUP if self.grouped else "",
            token,
            self.now,
        )

    def settle_cloud(self) -> None:
        """What ends is gone; a group comes to its size if the cloud has machines."""
        self.machines = {
            name: one for name, one in self.machines.items() if one.state is not InstanceState.ENDING
        }
        for name in sorted(self.machines)[self.desired :] if self.grouped else ():
            del self.machines[name]
            self.chosen_by_cloud += 1
        while self.grouped and self.capacity and len(self.machines) < self.desired:
            self._buy()

    def register_all(self) -> None:
        self.nodes = {
            one.provider_id.lower(): NodeFact(one.instance_id, one.provider_id, True, 1)
            for one in self.machines.values()
        }

    def wait(self, seconds: float) -> None:
        self.hidden = ""
        self.now += timedelta(seconds=seconds)

    def drain(self, name: str) -> None:
        claim = self.claims[name]
        if claim.status.state is ClaimState.GPU_READY:
            status = life.draining(claim.status, "Idle", "idle", self.now)
            self.claims[name] = replace(claim, status=status)

    def quiesce(self) -> None:
        """No more crashes, the cloud has machines again, and everything gets its time."""
        self.crash_in, self.capacity, self.mapped = None, True, True
        for _ in range(12):
            self.sweep()
            self.settle_cloud()
            self.register_all()
            self.wait(5)

    def live_claims(self) -> list[GpuNodeClaim]:
        return [one for one in self.claims.values() if life.is_live(one)]


def ready_world(grouped: bool) -> World:
    world = World(grouped)
    world.create_claim()
    world.quiesce()
    return world
