"""The kubelets of many machines in one process: one watch of pods and one of nodes for all of them.

Machines may come and go while it runs: a new directory gets a kubelet, an ended one loses its node.

Decides which machine a pod belongs to and when a node must be told of; what happens to a pod is `worker`'s.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.resources import LEASES, NODES, PODS
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubelet.host import Behaviour, Host
from gpuloom.sim.kubelet.podresources import PodResourcesServer, check_socket_path
from gpuloom.sim.kubelet.status import (
    LEASE_NAMESPACE,
    lease_object,
    node_labels,
    node_object,
    node_status_patch,
)
from gpuloom.sim.kubelet.worker import PodWorker
from gpuloom.sim.machines.machine import Machine, find_machines, machine_names

_log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
MACHINES_INTERVAL_S = 1.0
LOCK_FILE = ".kubelet.lock"
MAX_WRITES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    machines_dir: Path
    behaviour: Behaviour


class KubePodApi:
    """Writes about pods, guarded by UID, and only so many at once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(MAX_WRITES_AT_ONCE)

    async def write_status(self, pod: PodRef, status: JsonObject) -> None:
        async with self._slots:
            patch = {"metadata": {"uid": pod.uid}, "status": status}
            await self._client.patch_status(PODS, pod.name, pod.namespace, patch)

    async def confirm_delete(self, pod: PodRef) -> None:
        async with self._slots:
            options = DeleteOptions(uid=pod.uid, grace_period_s=0)
            await self._client.delete(PODS, pod.name, pod.namespace, options)


class KubeletProcess:
    """`run` until cancelled; nothing on the machines ends with it."""

    def __init__(self, client: KubeClient, settings: KubeletSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._api = KubePodApi(client)
        self._pods = Informer(client, PODS, clock, InformerOptions())
        self._nodes = Informer(client, NODES, clock, InformerOptions())
        self._hosts: dict[str, Host] = {}
        self._opened: dict[str, AsyncExitStack] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[str, PodWorker] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Raise InvalidRequestError if the machines can't be taken over."""
        directories = find_machines(self._settings.machines_dir)
        with machines_lock(self._settings.machines_dir):
            for directory in directories:
                check_socket_path(Machine.open(directory).socket_path)
            try:
                for directory in directories:
                    await self._take_over(directory)
                async with asyncio.TaskGroup() as tasks:
                    self._tasks = tasks
                    tasks.create_task(self._nodes.run())
                    tasks.create_task(self._pods.run())
                    tasks.create_task(self._heartbeats())
                    await self._follow_pods()
                    tasks.create_task(self._follow_machines())
            finally:
                for opened in self._opened.values():
                    await opened.aclose()

    async def _take_over(self, directory: Path) -> Host:
        async with AsyncExitStack() as stack:
            host = Host(Machine.open(directory), self._settings.behaviour, self._clock)
            stack.callback(host.close)
            server = PodResourcesServer(host)
            await server.start()
            stack.push_async_callback(server.stop)
            self._opened[host.node] = stack.pop_all()
        self._hosts[host.node] = host
        return host

    async def _follow_machines(self) -> None:
        await self._nodes.wait_synced()
        while True:
            await self._clock.sleep(MACHINES_INTERVAL_S)
            present = machine_names(self._settings.machines_dir)
            for name in sorted(present - self._hosts.keys()):
                try:
                    host = await self._take_over(self._settings.machines_dir / name)
                except (GpuloomError, OSError) as error:
                    _log.warning("machine not taken over", extra={"machine": name, "error": str(error)})
                    continue
                await self._heartbeat(host)
            for name in sorted(self._hosts.keys() - present):
                await self._let_go(self._hosts.pop(name))

    async def _let_go(self, host: Host) -> None:
        """The machine is gone, with all that ran on it; what a cloud's controller would do is done here."""
        for uid, hosted in tuple(host.hosted.items()):
            task = self._work.get(uid)
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if not hosted.exited:
                host.exit(uid, killed=True)
        await self._opened.pop(host.node).aclose()
        node = self._nodes.get(host.node)
        if node is None:
            return
        try:
            await self._client.delete(NODES, host.node, options=DeleteOptions(uid=uid_of(node)))
        except (ConflictError, NotFoundError):
            return
        except GpuloomError as error:
            _log.warning("node not deleted", extra={"node": host.node, "error": str(error)})

    async def _follow_pods(self) -> None:
        """Only once all pods are known: before, a pod that is merely not listed yet would look deleted."""
        await self._pods.wait_synced()
        for host in self._hosts.values():
            for hosted in tuple(host.hosted.values()):
                self._start_worker(hosted.pod, host)
        self._pods.on_change(self._on_pod)

    def _on_pod(self, change: Change) -> None:
        pod = change.object
        uid = uid_of(pod)
        if uid in self._workers:
            self._workers[uid].poke()
            return
        host = self._hosts.get((pod.get("spec") or {}).get("nodeName") or "")
        if host is not None and change.new is not None:
            namespace, name = key_of(pod)
            self._start_worker(PodRef(namespace, name, uid), host)

    def _start_worker(self, pod: PodRef, host: Host) -> None:
        if pod.uid in self._workers or self._tasks is None:
            return
        worker = PodWorker(pod, host, self._api, self._clock, lambda: self._pods.by_uid(pod.uid))
        self._workers[pod.uid] = worker
        task = self._tasks.create_task(worker.run())
        self._work[pod.uid] = task
        task.add_done_callback(lambda _: self._forget_worker(pod.uid))

    def _forget_worker(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._work.pop(uid, None)

    async def _heartbeats(self) -> None:
        """Every node each period, spread over it so that a thousand nodes don't speak at once."""
        await self._nodes.wait_synced()
        await asyncio.gather(*(self._heartbeat(host) for host in self._hosts.values()))
        while True:
            for host in tuple(self._hosts.values()):
                await self._clock.sleep(HEARTBEAT_S / max(1, len(self._hosts)))
                await self._heartbeat(host)
            if not self._hosts:
                await self._clock.sleep(HEARTBEAT_S)

    async def _heartbeat(self, host: Host) -> None:
        """A missed beat is no harm: the next one comes. A machine that is gone must not register again."""
        if self._hosts.get(host.node) is not host:
            return
        try:
            await self._tell_node(host)
            await self._renew_lease(host)
        except GpuloomError as error:
            _log.warning("heartbeat failed", extra={"node": host.node, "error": str(error)})

    async def _tell_node(self, host: Host) -> None:
        hardware, faults, now = host.machine.hardware, host.machine.faults(), self._clock.now()
        node = self._nodes.get(host.node)
        if node is None:
            try:
                await self._client.create(NODES, node_object(hardware, faults, now))
            except ConflictError:
                # Somebody was quicker; the informer shows that node before the next beat.
                pass
            return
        labels = (node.get("metadata") or {}).get("labels") or {}
        missing = {name: value for name, value in node_labels(hardware).items() if name not in labels}
        if missing:
            await self._client.patch(NODES, host.node, None, {"metadata": {"labels": missing}})
        patch = node_status_patch(node, hardware, faults, now)
        if patch is not None:
            await self._client.patch_status(NODES, host.node, None, patch)

    async def _renew_lease(self, host: Host) -> None:
        lease = lease_object(host.node, self._clock.now())
        try:
            await self._client.patch(LEASES, host.node, LEASE_NAMESPACE, {"spec": lease["spec"]})
        except NotFoundError:
            await self._client.create(LEASES, lease)


@contextmanager
def machines_lock(machines_dir: Path) -> Iterator[None]:
    """Two kubelets on one machine would give its devices twice. The lock dies with its process."""
    descriptor = os.open(machines_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(
                f"another kubelet process runs the machines in {machines_dir}"
            ) from None
        yield
    finally:
        os.close(descriptor)
