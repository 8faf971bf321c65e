"""Moves about pods that end, or seem to: whose word that is, and what their node shows meanwhile."""

from tests.unit.scheduler_extender.model.machines import Machine, Owed
from tests.unit.scheduler_extender.model.moves import Draw, move, pick
from tests.unit.scheduler_extender.model.world import World


class Ends:
    world: World

    @move("ends", "reports", "nodes", when=lambda game: bool(game.bound()))
    def a_container_crashes_or_runs_again(self, draw: Draw) -> None:
        """One of a pod that vanished is not started again."""
        owed = pick(self.bound(), draw)
        owed.between_runs = owed.started and not owed.between_runs

    @move("ends", "reports", "nodes", when=lambda game: bool(game.bound()))
    def somebody_calls_a_pod_failed_or_its_kubelet_shows_it_running(self, draw: Draw) -> None:
        """Its kubelet stops its containers some time, and may report their states before."""
        owed = pick(self.bound(), draw)
        state = "waiting" if owed.between_runs else "running" if owed.started else ""
        self.world.api.show(owed.pod.name, "Running" if owed.started and draw(2) else "Failed", state)
        self.world.replica.hear_pods(len(self.world.api.log))

    @move("reports", "nodes", weight=1)
    def an_agent_restarts_or_becomes_blind_or_sees(self, draw: Draw) -> None:
        machine = pick(self.machines(), draw)
        if draw(2):
            machine.blind = not machine.blind
        elif self.world.may_restart_agent(machine):
            machine.restart_agent()

    @move("ends", "nodes", weight=1)
    def a_machine_is_booted_anew(self, draw: Draw) -> None:
        """Not where another authority's devices are held: what a kubelet then chooses is not our doing."""
        machine = pick(self.machines(), draw)
        if self.world.may_restart_agent(machine) and not machine.held_elsewhere:
            self.world.reboot(machine)

    def machines(self) -> list[Machine]:
        return list(self.world.machines.values())

    def owed(self, started: bool) -> list[tuple[Machine, Owed]]:
        return [
            (machine, owed)
            for machine in self.machines()
            for owed in machine.owed.values()
            if owed.started == started
        ]

    def bound(self) -> list[Owed]:
        """What is owed to pods that are still in Kubernetes."""
        owed = [owed for machine in self.machines() for owed in machine.owed.values()]
        return [entry for entry in owed if not self.world.has_vanished(entry.pod)]
