"""Where the state is fed from: four informers and the mirror of discovery."""

from dataclasses import dataclass

from gpuloom.clients.discovery import ClusterMirror
from gpuloom.kube.informer import Informer
from services.scheduler_extender.adapters.holds import HoldFeed
from services.scheduler_extender.adapters.pod_informer import PodInformer
from services.scheduler_extender.adapters.reservations import ReservationFeed
from services.scheduler_extender.state.cluster import ClusterState

MAX_SILENCE_S = 60.0


@dataclass(slots=True)
class Sources:
    nodes: Informer
    pods: PodInformer
    holds: HoldFeed
    mirror: ClusterMirror
    reservations: ReservationFeed
    _rewinds: int = 0

    @property
    def _informers(self) -> tuple[Informer, ...]:
        return self.nodes, self.pods.informer, self.holds.informer, self.reservations.informer

    def feed(self, state: ClusterState) -> None:
        for informer in self._informers:
            informer.on_rewind(self._note_rewind)
            informer.on_rewind(state.rewind)
        self.nodes.on_change(state.observe_node)
        self.pods.informer.on_change(state.observe_pod)
        self.holds.informer.on_change(state.observe_hold)
        self.mirror.on_change(state.observe_facts)

    async def follow_pods(self) -> None:
        # The nodes first: a pod's allocation is judged by its node's UID, and one that ends on a node that
        # is not there leaves nothing behind.
        await self.nodes.wait_synced()
        await self.pods.run()

    def rewinds(self) -> int:
        return self._rewinds

    def begin_anew(self) -> None:
        """Somebody saw that the Kubernetes API has another history now."""
        for informer in self._informers:
            if informer.synced:
                informer.begin_anew()

    def missing(self) -> str:
        if not (self.pods.informer.synced and self.nodes.synced):
            return "pods and nodes are not listed yet"
        if not self.holds.informer.synced:
            return "GPUHolds are not listed yet"
        if not self.mirror.synced:
            return "no device facts from discovery yet"
        return ""

    def silence(self) -> str:
        silent = self.pods.informer.last_contact_age_s() > MAX_SILENCE_S
        return "the Kubernetes API is silent" if silent else ""

    async def wait_complete(self) -> None:
        await self.nodes.wait_synced()
        await self.pods.informer.wait_synced()
        await self.holds.informer.wait_synced()
        await self.mirror.wait_synced()

    def _note_rewind(self) -> None:
        self._rewinds += 1
