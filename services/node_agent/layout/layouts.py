"""The layouts of one node: takes in changes, carries them out, and restores what a boot took.

One change at a time per GPU; those of different GPUs go on side by side. What a change touches is marked in
the node's state from before it is journalled until after it ended, so nothing of it is given out meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotFoundError, UnavailableError
from gpuloom.model.gpu import Gpu
from gpuloom.model.layout import GpuLayout, LayoutChange, LayoutRequest, NodeLayouts
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.runtime.finishing import finished
from services.node_agent.layout.core.admission import Usage, refusal
from services.node_agent.layout.core.journal import Journal, decode, encode, restoring
from services.node_agent.layout.core.marks import Mark, mark_of, marked
from services.node_agent.layout.executor import Book, Executor, Machine, Patience
from services.node_agent.layout.metrics import LayoutMetrics
from services.node_agent.layout.ports import DeviceFiles, JournalStore, Reach, StepError, nowhere
from services.node_agent.node import Node

_log = logging.getLogger(__name__)

_RESTORING = Mark("its layout of before the boot is being restored")
_ANSWER_AFTER_S = 5.0
_TEND_INTERVAL_S = 5.0
_RETRY_S = 15.0
_SEEN_WITHIN_S = 30.0
_SEEN_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class LayoutParts:
    machine: Machine
    store: JournalStore
    devices: DeviceFiles
    clock: Clock
    metrics: LayoutMetrics
    boot_id: Callable[[], str]
    reach: Reach = nowhere
    patience: Patience = field(default_factory=Patience)


class Layouts:
    def __init__(self, node: Node, parts: LayoutParts) -> None:
        self._node = node
        self._parts = parts
        self._book = Book(Journal(), self._save)
        machine, clock, patience = parts.machine, parts.clock, parts.patience
        self._executor = Executor(machine, self._book, clock, parts.reach, patience)
        self._marks: dict[str, Mark] = {}
        self._taken_out: frozenset[str] = frozenset()
        """Marked GPUs that are not on this node, of which that was told."""
        self._known: dict[str, GpuLayout] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._work: asyncio.Queue[str] = asyncio.Queue()
        self._retry_at_s: dict[str, float] = {}
        self._ended = asyncio.Condition()
        self._late: list[asyncio.Task[None]] = []
        """Restores that took longer than the start could wait for."""
        node.marking = self.mark

    def mark(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """What the node's state is to show of them."""
        sharing = {uuid: layout.sharing for uuid, layout in self._known.items()}
        return marked(gpus, self._marks, sharing)

    async def open(self) -> None:
        """Know what was under way and what is wanted, before anybody is told anything of this node."""
        self._book.journal = await self._load()
        for uuid, change in self._book.journal.open.items():
            self._marks[uuid] = mark_of(change.request, back=change.back)
        for uuid in self._book.journal.wanted.keys() - self._marks.keys():
            self._marks[uuid] = _RESTORING
        self._show()

    async def settle(self, patience_s: float) -> None:
        """Finish and restore what can be within this time; the rest stays marked, and `run` goes on."""
        waiting = [asyncio.create_task(self._settle_one(uuid)) for uuid in sorted(self._marks)]
        try:
            async with deadline(self._parts.clock, patience_s):
                if waiting:
                    await asyncio.wait(waiting)
        except TimeoutError:
            _log.warning("layouts are not restored in time; their GPUs stay closed meanwhile")
        for task in waiting:
            if task.done():
                task.result()
        self._late = [task for task in waiting if not task.done()]
        await self._remember_boot()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tend())
            for late in self._late:
                group.create_task(_outcome(late))
            while True:
                uuid = await self._work.get()
                group.create_task(self._settle_one(uuid))

    async def change(self, request: LayoutRequest) -> LayoutChange:
        """Begin it, unless it is known, and say what became of it until now.

        Raise ConflictError, with the reason, if it may not begin; NotFoundError if the GPU is not here.
        """
        known = self._book.journal.find(request.id)
        if known is None:
            # A journal that says so must be followed by the work, also if whoever asked has left by then.
            await finished(self._begin(request))
        elif known.request.gpu_uuid != request.gpu_uuid:
            raise InvalidRequestError(f"change {request.id} is one of GPU {known.request.gpu_uuid}")
        try:
            async with deadline(self._parts.clock, _ANSWER_AFTER_S), self._ended:
                await self._ended.wait_for(lambda: self._state_of(request.id).state.ended)
        except TimeoutError:
            pass
        return self._state_of(request.id)

    async def list_now(self) -> NodeLayouts:
        found = await asyncio.gather(*(self._shown(gpu.uuid) for gpu in self._node.state.gpus))
        journal = self._book.journal
        under_way = tuple(change.shown for _, change in sorted(journal.open.items()))
        return NodeLayouts(tuple(found), under_way + journal.ended)

    async def _begin(self, request: LayoutRequest) -> None:
        uuid = request.gpu_uuid
        if uuid not in {gpu.uuid for gpu in self._node.state.gpus}:
            raise NotFoundError("no GPU of this node has that UUID")
        async with self._turn(uuid):
            if self._book.journal.find(request.id) is not None:
                # Asked for twice at once, as by a leader and the next one.
                return
            under_way = self._book.journal.open.get(uuid)
            if under_way is not None:
                raise ConflictError(f"change {under_way.request.id} of this GPU is under way")
            marked_before = self._marks.get(uuid)
            # From here on nothing of it is delivered, so whoever has it is known.
            self._mark(uuid, mark_of(request))
            try:
                layout = await self._executor.read(uuid)
                refused = refusal(request, layout, await self._parts.machine.users.of(uuid))
                if refused:
                    self._parts.metrics.count_refused()
                    raise ConflictError(refused)
                await self._book.write(lambda journal: journal.begin(request, layout))
            except BaseException:
                self._mark(uuid, marked_before)
                raise
        await self._parts.reach("layout-after-journal")
        fields = {
            "gpu": uuid,
            "change": request.id,
            "create": len(request.create),
            "destroy": len(request.destroy),
        }
        _log.info("a change of a layout begins", extra=fields)
        self._work.put_nowait(uuid)

    async def _settle_one(self, uuid: str) -> None:
        """End the open change of this GPU, or restore it; whatever prevents that is tried again later."""
        async with self._turn(uuid):
            try:
                if uuid in self._book.journal.open:
                    self._parts.metrics.count_ended(await self._executor.finish(uuid))
                else:
                    await self._restore(uuid)
                layout = await self._executor.read(uuid)
            except (GpuloomError, OSError) as error:
                self._retry_at_s[uuid] = self._parts.clock.monotonic() + _RETRY_S
                if uuid in self._marked_here() or uuid not in self._taken_out:
                    _log.warning("a layout can't be settled now", extra={"gpu": uuid, "reason": str(error)})
                return
            self._known[uuid] = layout
            await self._publish()
            if not await self._seen(layout):
                self._retry_at_s[uuid] = self._parts.clock.monotonic() + _RETRY_S
                return
            self._mark(uuid, None)
        await self._remember_boot()
        async with self._ended:
            self._ended.notify_all()

    async def _seen(self, layout: GpuLayout) -> bool:
        """Whether samples show it by now: until then the state may offer what is gone."""
        until_s = self._parts.clock.monotonic() + _SEEN_WITHIN_S
        while self._node.looked_at and not _shows(self._node.state.gpus, layout):
            if self._parts.clock.monotonic() > until_s:
                _log.warning("samples do not show a new layout", extra={"gpu": layout.gpu_uuid})
                return False
            await self._parts.clock.sleep(_SEEN_PAUSE_S)
        return True

    async def _restore(self, uuid: str) -> None:
        journal = self._book.journal
        wanted = journal.wanted.get(uuid)
        if wanted is None:
            return
        layout = await self._executor.read(uuid)
        goal = restoring(wanted, layout, journal.boot_id != self._parts.boot_id())
        if goal is not None:
            fields = {"gpu": uuid, "instances": len(wanted.placements)}
            _log.info("a layout is restored", extra=fields)
            failure = await self._executor.approach(uuid, goal)
            if failure:
                raise StepError(f"the layout of before can't be restored: {failure}")
            self._parts.metrics.count_restored()
            layout = await self._executor.read(uuid)
        if layout.usable != wanted.placements or layout.mig_enabled != wanted.enabled:
            _log.warning("a layout was changed by somebody else and is adopted", extra={"gpu": uuid})
        await self._book.write(lambda journal: journal.adopt(layout))

    async def _tend(self) -> None:
        """Try again what failed, adopt what others made, and restore what a reset took."""
        while True:
            await self._parts.clock.sleep(_TEND_INTERVAL_S)
            now_s = self._parts.clock.monotonic()
            due = [uuid for uuid, at_s in self._retry_at_s.items() if at_s <= now_s]
            for uuid in due:
                del self._retry_at_s[uuid]
                self._work.put_nowait(uuid)
            for gpu in self._node.state.gpus:
                if gpu.uuid not in self._marks:
                    await self._compare(gpu)
            await self._leave_out_what_is_gone()
            deaths = await self._parts.machine.sharing.tend(self._clients_of)
            self._parts.metrics.count_mps_deaths(deaths)
            await self._publish()

    async def _leave_out_what_is_gone(self) -> None:
        """A card that was taken out stays marked, in case it comes back, and holds nothing else up."""
        gone = frozenset(self._marks) - self._marked_here()
        if gone - self._taken_out:
            _log.warning("GPUs that had a layout are not there", extra={"gpus": ", ".join(sorted(gone))})
        if gone:
            self._parts.metrics.set_changing(len(self._marked_here()))
            await self._remember_boot()
        self._taken_out = gone

    def _marked_here(self) -> frozenset[str]:
        """Before the first sample any GPU may be there."""
        there = {gpu.uuid for gpu in self._node.state.gpus}
        return frozenset(uuid for uuid in self._marks if uuid in there or not self._node.looked_at)

    def _clients_of(self, uuid: str) -> tuple[str, ...]:
        holders = self._node.state.holders
        return tuple(str(h.pod) for h in holders if any(device.gpu_uuid == uuid for device in h.devices))

    async def _compare(self, gpu: Gpu) -> None:
        """What the last sample shows is compared first: the driver is asked only if it differs."""
        wanted = self._book.journal.wanted.get(gpu.uuid)
        shown = frozenset(instance.placement for instance in gpu.mig_instances if instance.uuid)
        known = self._known.get(gpu.uuid)
        same = wanted is not None and (shown, gpu.mig_enabled) == (wanted.placements, wanted.enabled)
        if same and known is not None and known.usable == shown:
            return
        if wanted is None and not gpu.mig_enabled:
            return
        async with self._turn(gpu.uuid):
            if gpu.uuid in self._book.journal.open:
                return
            try:
                layout = await self._executor.read(gpu.uuid)
            except GpuloomError:
                return
            if wanted is not None and restoring(wanted, layout, boot_changed=False) is not None:
                self._mark(gpu.uuid, _RESTORING)
                self._work.put_nowait(gpu.uuid)
                return
            if layout.problem:
                return
            self._known[gpu.uuid] = layout
            if wanted is None or not same:
                await self._adopt(layout)

    async def _adopt(self, layout: GpuLayout) -> None:
        _log.info("a layout that somebody else made is adopted", extra={"gpu": layout.gpu_uuid})
        try:
            await self._book.write(lambda journal: journal.adopt(layout))
        except UnavailableError:
            return

    async def _publish(self) -> None:
        try:
            await self._parts.devices.publish(tuple(self._known[uuid] for uuid in sorted(self._known)))
        except (OSError, GpuloomError) as error:
            self._parts.metrics.count_unpublished()
            _log.warning("device files of MIG instances can't be made", extra={"reason": str(error)})

    async def _shown(self, uuid: str) -> GpuLayout:
        try:
            layout = await self._executor.read(uuid)
            usage = await self._parts.machine.users.of(uuid)
        except GpuloomError as error:
            return GpuLayout(uuid, problem=str(error))
        return _with_users(layout, usage)

    async def _remember_boot(self) -> None:
        if self._marked_here():
            return
        try:
            await self._book.write(lambda journal: replace(journal, boot_id=self._parts.boot_id()))
        except UnavailableError as error:
            # Whoever comes next restores once more, which changes nothing.
            _log.warning("the boot is not noted", extra={"reason": str(error)})

    async def _load(self) -> Journal:
        try:
            content = await self._parts.store.load()
            return Journal(boot_id=self._parts.boot_id()) if content is None else decode(content)
        except (OSError, InvalidRequestError) as error:
            _log.warning(
                "the journal of layouts is not used: what is there is adopted", extra={"reason": str(error)}
            )
            return Journal(boot_id=self._parts.boot_id())

    async def _save(self, journal: Journal) -> None:
        try:
            await self._parts.store.save(encode(journal))
        except OSError as error:
            raise UnavailableError(f"the journal of layouts can't be written: {error.strerror}") from None

    def _state_of(self, change_id: str) -> LayoutChange:
        found = self._book.journal.find(change_id)
        if found is None:
            raise NotFoundError(f"change {change_id} is not known here any more")
        return found

    def _turn(self, uuid: str) -> asyncio.Lock:
        return self._turns.setdefault(uuid, asyncio.Lock())

    def _mark(self, uuid: str, mark: Mark | None) -> None:
        if mark is None:
            self._marks.pop(uuid, None)
        else:
            self._marks[uuid] = mark
        self._parts.metrics.set_changing(len(self._marked_here()))
        self._show()

    def _show(self) -> None:
        self._node.show_marks()


async def _outcome(task: asyncio.Task[None]) -> None:
    await task


def _with_users(layout: GpuLayout, usage: Usage) -> GpuLayout:
    return replace(
        layout,
        instances=tuple(
            replace(instance, used_by=usage.of(instance.placement)) for instance in layout.instances
        ),
    )


def _shows(gpus: tuple[Gpu, ...], layout: GpuLayout) -> bool:
    shown = next((gpu for gpu in gpus if gpu.uuid == layout.gpu_uuid), None)
    if shown is None:
        return False
    instances = {(instance.placement, instance.uuid) for instance in shown.mig_instances}
    wanted = {(instance.placement, instance.uuid) for instance in layout.instances}
    return shown.mig_enabled == layout.mig_enabled and instances == wanted
