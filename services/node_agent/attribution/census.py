"""Who computes on this node's GPUs, sample after sample.

A GPU that does not tell its processes now still has those it told last, as long as they run and are the same
ones: a card that hangs must not look free.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.errors import GpuloomError
from gpuloom.model.process import GpuProcess
from services.node_agent.attribution.core.ownership import OwnedProcess, own
from services.node_agent.core.readings import DriverReading, Process
from services.node_agent.ports import PodDirectory, ProcessOwner, ProcessTable


@dataclass(frozen=True, slots=True)
class Count:
    """`told` by the driver in this sample, and `remembered` of GPUs that told nothing.

    `problem` is why nothing is known of their owners, if so.
    """

    told: tuple[OwnedProcess, ...] = ()
    remembered: tuple[OwnedProcess, ...] = ()
    problem: str = ""

    @property
    def all(self) -> tuple[OwnedProcess, ...]:
        return self.told + self.remembered

    @property
    def shown(self) -> tuple[GpuProcess, ...]:
        return tuple(owned.process for owned in self.told)


class Census:
    def __init__(self, table: ProcessTable, pods: PodDirectory) -> None:
        self._table = table
        self._pods = pods
        self._last: dict[str, dict[Process, ProcessOwner]] = {}
        """What each GPU told last, by UUID; of processes whose owner was seen."""

    async def take(self, reading: DriverReading | None) -> Count:
        """`reading` None: the driver does not answer."""
        lists = {} if reading is None else reading.processes
        told = [process for processes in lists.values() for process in processes]
        before = {uuid: last for uuid, last in self._last.items() if uuid not in lists}
        silent = [process for last in before.values() for process in last]
        try:
            owners = await self._table.owners({process.pid for process in (*told, *silent)})
        except GpuloomError as error:
            return Count(own(told, {}, self._pods), (), str(error))
        self._last = {
            uuid: {each: owners[each.pid] for each in processes if each.pid in owners}
            for uuid, processes in lists.items()
        } | {
            # Another pod, or none, behind the same number: the number was given to another process.
            uuid: {each: owner for each, owner in last.items() if _is_same(owners.get(each.pid), owner)}
            for uuid, last in before.items()
        }
        still = [process for uuid in before for process in self._last[uuid]]
        self._last = {uuid: last for uuid, last in self._last.items() if last}
        return Count(own(told, owners, self._pods), own(still, owners, self._pods))

    async def of(self, processes: Iterable[Process]) -> tuple[GpuProcess, ...]:
        """These processes with what is known of their owners; nothing, if the host's can't be seen."""
        listed = tuple(processes)
        try:
            owners = await self._table.owners({process.pid for process in listed})
        except GpuloomError:
            owners = {}
        return tuple(owned.process for owned in own(listed, owners, self._pods))

    async def without_servers(self, processes: Iterable[Process]) -> tuple[Process, ...]:
        """Without servers of MPS: one stays on its GPU when its last client has gone, and serves nobody then.

        All of them, if the host's processes can't be seen.
        """
        listed = tuple(processes)
        try:
            owners = await self._table.owners({process.pid for process in listed})
        except GpuloomError:
            return listed
        servers = {o.process.pid for o in own(listed, owners, self._pods) if o.infrastructure}
        return tuple(process for process in listed if process.pid not in servers)


def _is_same(now: ProcessOwner | None, before: ProcessOwner) -> bool:
    return now is not None and (now.pod_uid, now.container_id) == (before.pod_uid, before.container_id)
