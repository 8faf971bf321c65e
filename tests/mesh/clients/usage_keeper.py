"""A consumer that keeps usage windows as a database would: all of a batch with its cursor, or nothing."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from gpuloom.clients.agent_directory import AgentDirectory
from gpuloom.clients.usage import FollowerOptions, UsageFollower
from gpuloom.errors import UnavailableError
from gpuloom.model.usage import UsageBatch, UsageCursor, UsageWindow
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import SystemClock
from tests.mesh.node_agent.builders import Mesh, Service
from tests.mesh.waiting import running


class Keeper:
    def __init__(self) -> None:
        self.windows: dict[str, list[UsageWindow]] = {}
        self.missed = 0
        self.refusals = 0
        """So many batches are refused before one is taken."""
        self._cursors: dict[str, UsageCursor] = {}

    async def cursors(self) -> Iterable[UsageCursor]:
        return tuple(self._cursors.values())

    async def take(self, batch: UsageBatch) -> None:
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the database is away")
        self._cursors[batch.cursor.spool_id] = batch.cursor
        self.windows.setdefault(batch.cursor.spool_id, []).extend(batch.windows)
        self.missed += batch.missed

    @property
    def numbers(self) -> dict[str, list[int]]:
        return {spool: [window.sequence for window in windows] for spool, windows in self.windows.items()}

    def all_once(self) -> bool:
        return all(numbers == list(range(1, len(numbers) + 1)) for numbers in self.numbers.values())


@asynccontextmanager
async def following(mesh: Mesh, discovery: Service, keeper: Keeper) -> AsyncIterator[UsageFollower]:
    mirror = await mesh.mirror(discovery)
    environment = RpcEnvironment(tls_files(mesh.folder, "cli"), CollectorRegistry(), SystemClock())
    options = FollowerOptions(first_backoff_s=0.02, backoff_cap_s=0.2, silence_s=2.0)
    follower = UsageFollower(AgentDirectory(mirror), environment, keeper, options)
    async with running(follower.run):
        yield follower
