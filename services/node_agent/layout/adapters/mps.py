"""How GPUs of this node are shared: one MPS daemon per GPU, looked after, or the driver's time slice.

One daemon per GPU, because a fault of one client ends all clients of its daemon, and because one daemon
serves one user at a time. A daemon that dies is started again, and whose work it took with it is told.
"""

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import Sharing
from gpuloom.runtime.clock import Clock
from services.node_agent.layout.adapters.programs import run_program
from services.node_agent.layout.ports import StepError
from services.node_agent.nvml.binding import NvmlError
from services.node_agent.nvml.cutting import described, set_compute_mode
from services.node_agent.nvml.driver import NvmlDriver

_log = logging.getLogger(__name__)

_CONTROL_S = 10.0
_START_TRIES = 50
_START_PAUSE_S = 0.1
_STOP_S = 15.0
_PERFORM_S = 10.0
_FILE = "sharing.json"


@dataclass(frozen=True, slots=True)
class MpsOptions:
    """`folder` holds a folder per GPU, with the daemon's pipes; containers of clients get it mounted."""

    folder: Path = Path("/run/gpuloom/mps")
    control: str = "nvidia-cuda-mps-control"
    smi: str = "nvidia-smi"
    boot_id: Callable[[], str] = field(default=lambda: "")


def pipe_folder(folder: Path, gpu_uuid: str) -> Path:
    return folder / gpu_uuid / "pipe"


class MpsDaemons:
    """Who shares a GPU by MPS or by time; nothing of it survives a boot."""

    def __init__(self, driver: NvmlDriver, clock: Clock, options: MpsOptions | None = None) -> None:
        self._driver = driver
        self._clock = clock
        self._options = options or MpsOptions()
        self._daemons: dict[str, asyncio.subprocess.Process] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One at a time on a GPU: what is stopped must not be taken for dead, and started again."""
        self._dead: set[str] = set()
        """GPUs whose daemon died and could not be started again yet: it dies once."""

    async def read(self, gpu_uuid: str) -> Sharing:
        sharing = await asyncio.to_thread(self._kept, gpu_uuid)
        if sharing.mode is not SharingMode.MPS:
            return sharing
        return sharing if await self._answers(gpu_uuid) else Sharing()

    async def start(self, gpu_uuid: str, sharing: Sharing) -> None:
        async with self._turns[gpu_uuid]:
            if sharing.mode is SharingMode.TIME_SLICING:
                await self._set_time_slice(gpu_uuid, sharing.time_slice)
            if sharing.mode is SharingMode.MPS:
                await self._start_daemon(gpu_uuid, sharing)
            await asyncio.to_thread(self._keep, gpu_uuid, sharing)

    async def stop(self, gpu_uuid: str) -> None:
        async with self._turns[gpu_uuid]:
            sharing = await asyncio.to_thread(self._kept, gpu_uuid)
            # Before it ends: an agent that dies in between must not start it again.
            await asyncio.to_thread(self._keep, gpu_uuid, Sharing())
            try:
                if sharing.mode is SharingMode.MPS:
                    await self._stop_daemon(gpu_uuid)
                if sharing.mode is SharingMode.TIME_SLICING:
                    await self._set_time_slice(gpu_uuid, 0)
            except (StepError, UnavailableError, OSError):
                # Whoever reads next must see that it is shared yet.
                await asyncio.to_thread(self._keep, gpu_uuid, sharing)
                raise

    async def tend(self, clients_of: Callable[[str], tuple[str, ...]]) -> int:
        """Start daemons again that died; how many. `clients_of` names the pods that have the GPU."""
        deaths = 0
        for folder in await asyncio.to_thread(self._folders):
            async with self._turns[folder.name]:
                deaths += await self._tend_one(folder.name, clients_of)
        return deaths

    async def _tend_one(self, uuid: str, clients_of: Callable[[str], tuple[str, ...]]) -> bool:
        """Whether its daemon died since the last time."""
        sharing = await asyncio.to_thread(self._kept, uuid)
        if sharing.mode is not SharingMode.MPS or await self._answers(uuid):
            self._dead.discard(uuid)
            return False
        died = uuid not in self._dead
        if died:
            self._dead.add(uuid)
            fields = {"gpu": uuid, "pods": ", ".join(clients_of(uuid))}
            _log.warning("the MPS daemon of a GPU died, and with it the work of these pods", extra=fields)
        try:
            await self._start_daemon(uuid, sharing)
        except (StepError, UnavailableError, OSError) as error:
            fields = {"gpu": uuid, "reason": str(error)}
            _log.warning("the MPS daemon of a GPU can't be started again", extra=fields)
        return died

    async def _start_daemon(self, gpu_uuid: str, sharing: Sharing) -> None:
        await self._set_compute_mode(gpu_uuid, exclusive=True)
        environment = self._environment(gpu_uuid)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            await asyncio.to_thread(os.makedirs, environment[name], exist_ok=True)
        try:
            # In a session of its own, so that a signal to the agent is none to the clients' server.
            self._daemons[gpu_uuid] = await asyncio.create_subprocess_exec(
                self._options.control,
                "-f",
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise StepError(f"{self._options.control} can't be run: {error.strerror}") from None
        for _ in range(_START_TRIES):
            if await self._answers(gpu_uuid):
                break
            await self._clock.sleep(_START_PAUSE_S)
        else:
            raise StepError("the MPS daemon does not answer")
        await self._limit(gpu_uuid, sharing)

    async def _limit(self, gpu_uuid: str, sharing: Sharing) -> None:
        """Limits of clients whose container says nothing; they hold for servers that start from now on."""
        if sharing.thread_percentage:
            await self._control(gpu_uuid, f"set_default_active_thread_percentage {sharing.thread_percentage}")
            answer = await self._control(gpu_uuid, "get_default_active_thread_percentage")
            # It prints what it likes around the number: 50, 50.0.
            if _number(answer) != sharing.thread_percentage:
                raise StepError(f"the MPS daemon keeps another thread percentage: {answer[:50]}")
        if sharing.memory_mib:
            await self._control(gpu_uuid, f"set_default_device_pinned_mem_limit 0 {sharing.memory_mib}M")

    async def _stop_daemon(self, gpu_uuid: str) -> None:
        if await self._answers(gpu_uuid):
            await self._control(gpu_uuid, "quit -t 5")
        daemon = self._daemons.pop(gpu_uuid, None)
        if daemon is not None:
            try:
                await asyncio.wait_for(daemon.wait(), _STOP_S)
            except TimeoutError:
                daemon.kill()
        await self._set_compute_mode(gpu_uuid, exclusive=False)

    async def _answers(self, gpu_uuid: str) -> bool:
        if not pipe_folder(self._options.folder, gpu_uuid).is_dir():
            return False
        try:
            await self._control(gpu_uuid, "get_default_active_thread_percentage")
        except StepError:
            return False
        return True

    async def _control(self, gpu_uuid: str, command: str) -> str:
        environment = self._environment(gpu_uuid)
        program = (self._options.control,)
        return await run_program(
            program, self._clock, _CONTROL_S, text=f"{command}\n", environment=environment
        )

    async def _set_compute_mode(self, gpu_uuid: str, *, exclusive: bool) -> None:
        try:
            await self._driver.perform(gpu_uuid, lambda card: set_compute_mode(card, exclusive), _PERFORM_S)
        except NvmlError as error:
            raise StepError(f"the compute mode can't be set: {described(error)}") from None

    async def _set_time_slice(self, gpu_uuid: str, time_slice: int) -> None:
        command = (self._options.smi, "compute-policy", "-i", gpu_uuid, f"--set-timeslice={time_slice}")
        await run_program(command, self._clock, _CONTROL_S)

    def _environment(self, gpu_uuid: str) -> dict[str, str]:
        own = self._options.folder / gpu_uuid
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": gpu_uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe_folder(self._options.folder, gpu_uuid)),
            "CUDA_MPS_LOG_DIRECTORY": str(own / "log"),
        }

    def _folders(self) -> list[Path]:
        return [path.parent for path in sorted(self._options.folder.glob(f"*/{_FILE}"))]

    def _kept(self, gpu_uuid: str) -> Sharing:
        try:
            document = orjson.loads((self._options.folder / gpu_uuid / _FILE).read_bytes())
            if document["boot"] != self._options.boot_id():
                return Sharing()
            mode = SharingMode(document["mode"])
            threads, memory_mib = int(document["threads"]), int(document["memoryMib"])
            least_milli = int(document.get("leastMilli", 0))
            return Sharing(mode, threads, memory_mib, int(document["slice"]), least_milli)
        except (OSError, KeyError, TypeError, ValueError):
            return Sharing()

    def _keep(self, gpu_uuid: str, sharing: Sharing) -> None:
        folder = self._options.folder / gpu_uuid
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "boot": self._options.boot_id(),
            "mode": sharing.mode.value,
            "threads": sharing.thread_percentage,
            "memoryMib": sharing.memory_mib,
            "slice": sharing.time_slice,
            "leastMilli": sharing.least_milli,
        }
        replacement = folder / f".{_FILE}"
        replacement.write_bytes(orjson.dumps(document))
        replacement.replace(folder / _FILE)


def _number(text: str) -> float | None:
    try:
        return float(text.rsplit(maxsplit=1)[-1])
    except (IndexError, ValueError):
        return None
