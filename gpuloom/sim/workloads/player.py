"""Plays a workload plan against a Kubernetes API: creates pods when they are due, clears up what has ended.

A few pods are deleted by force while they run. They compute nothing and do not heed SIGTERM, so that their
containers outlive them: whoever is given their GPUs too early shows in the audit.

python -m gpuloom.sim.workloads.player (--api URL | --kubeconfig FILE) [--seed N] [--rate PODS/MIN] …
"""

import argparse
import asyncio
import logging
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuloom.catalog import InstanceType, load_catalog, slice_milli
from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.parse import quantity_value
from gpuloom.kube.resources import NAMESPACES as NAMESPACE_RESOURCE
from gpuloom.kube.resources import NODES, PODS
from gpuloom.names import RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU, RESOURCE_NVIDIA_MIG_PREFIX
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.sim.command import CommandParser, add_api_arguments, api_access, duration_argument, run_command
from gpuloom.sim.kubelet.host import ANNOTATION_DURATION, ANNOTATION_LOAD, ANNOTATION_SIGTERM
from gpuloom.sim.machines.cluster import FLEET
from gpuloom.sim.workloads.declared import DeclaredWorkloads
from gpuloom.sim.workloads.plan import (
    LABEL_WORKLOAD,
    NAMESPACES,
    ClusterSize,
    PlannedPod,
    WorkloadPlan,
)
from gpuloom.sim.workloads.wasteful import play_wasteful

__all__ = ["ClusterSize", "PlannedPod", "WorkloadPlan", "WorkloadPlayer", "cluster_size", "main"]

_log = logging.getLogger(__name__)

SWEEP_S = 2.0
CREATE_TRIES = 8
FORCED_ONE_IN = 40
FORCED_AFTER_S = (10.0, 100.0)
FORCED_DURATION = "5m"
_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"


@dataclass(frozen=True, slots=True)
class PlayerSettings:
    """`duration_s` None plays until cancelled; afterwards the pods are left as they are."""

    seed: int = 0
    pods_per_minute: float | None = None
    duration_s: float | None = None
    retention_s: float = 20.0


def cluster_size(nodes: Sequence[JsonObject]) -> ClusterSize:
    nvidia = [_amount(node, RESOURCE_NVIDIA_GPU) for node in nodes]
    gpuloom = [_amount(node, RESOURCE_GPU_MILLI) // 1000 for node in nodes]
    slices: Counter[str] = Counter()
    for node in nodes:
        for resource in _allocatable(node):
            if resource.startswith(RESOURCE_NVIDIA_MIG_PREFIX):
                slices[resource] += _amount(node, resource)
    return ClusterSize(
        *(sum(nvidia), sum(gpuloom), max(nvidia, default=0), max(gpuloom, default=0)),
        mig_slices=tuple(sorted((+slices).items())),
        cut_profiles=_cut_profiles(node for node in nodes if _amount(node, RESOURCE_GPU_MILLI)),
    )


def _cut_profiles(nodes: Iterable[JsonObject]) -> tuple[tuple[str, int], ...]:
    """Of one to three compute slices, the plainest of each size, on the models of these nodes."""
    names = {str((node["metadata"].get("labels") or {}).get(LABEL_INSTANCE_TYPE, "")) for node in nodes}
    found = set()
    for model in {
        kind.gpu.name: kind.gpu for kind in map(_instance_type, names) if kind is not None
    }.values():
        for compute in (1, 2, 3):
            fitting = [p for p in model.mig_profiles if p.compute_slices == compute]
            if fitting:
                plain = min(fitting, key=lambda p: (p.memory_slices, len(p.name)))
                found.add((plain.name, slice_milli(plain.memory_slices, model.mig_slices)))
    return tuple(sorted(found))


def _instance_type(name: str) -> InstanceType | None:
    for provider, known in FLEET:
        if known == name:
            return load_catalog().instance(provider, name)
    return None


class WorkloadPlayer:
    def __init__(self, client: KubeClient, settings: PlayerSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        # When a pod is to be deleted, by its UID.
        self._ended_s: dict[str, float] = {}
        self._give_up_s: dict[tuple[str, str], float] = {}
        self._running_s: dict[str, float] = {}
        selection = Selection(label_selector=LABEL_WORKLOAD)
        self._pods = Informer(client, PODS, clock, InformerOptions(selection=selection))
        self._pods.on_change(self._on_pod)

    async def run(self) -> None:
        for namespace in NAMESPACES:
            await self._create_namespace(namespace)
        size = await self._wait_for_nodes()
        if size.gpuloom_gpus:
            await play_wasteful(self._client, NAMESPACES[-1], self._clock)
        plan = WorkloadPlan(size, self._settings.seed, self._settings.pods_per_minute)
        declared = DeclaredWorkloads(self._client, self._settings.seed, NAMESPACES[0], self._clock)
        helpers = [asyncio.create_task(work) for work in (self._pods.run(), self._sweep(), declared.run())]
        playing = asyncio.create_task(self._play(plan))
        try:
            done, _ = await asyncio.wait({*helpers, playing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*helpers, playing):
                task.cancel()
            await asyncio.gather(*helpers, playing, return_exceptions=True)

    async def _play(self, plan: WorkloadPlan) -> None:
        start_s = self._clock.monotonic()
        for planned in plan.arrivals():
            if self._settings.duration_s is not None and planned.at_s > self._settings.duration_s:
                await self._clock.sleep(start_s + self._settings.duration_s - self._clock.monotonic())
                return
            await self._clock.sleep(start_s + planned.at_s - self._clock.monotonic())
            await self._create(planned)

    async def _create(self, planned: PlannedPod) -> None:
        """A pod that can't be created after all tries is left out: the next one is due."""
        backoff = Backoff(first_s=0.2, cap_s=2.0)
        for _ in range(CREATE_TRIES):
            try:
                await self._client.create(PODS, with_fate(planned.manifest))
            except ConflictError:
                return
            except GpuloomError as error:
                _log.warning("pod not created", extra={"error": str(error)})
                await self._clock.sleep(backoff.next_delay_s())
            else:
                if planned.give_up_after_s is not None:
                    due_s = self._clock.monotonic() + planned.give_up_after_s
                    self._give_up_s[key_of(planned.manifest)] = due_s
                return

    async def _create_namespace(self, name: str) -> None:
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            try:
                await self._client.create(NAMESPACE_RESOURCE, {"metadata": {"name": name}})
            except ConflictError:
                return
            except GpuloomError as error:
                _log.warning("namespace not created", extra={"namespace": name, "error": str(error)})
                await self._clock.sleep(backoff.next_delay_s())
            else:
                return

    async def _wait_for_nodes(self) -> ClusterSize:
        """Nodes register one after the other: wait until a second list has as many as the first."""
        seen = -1
        while True:
            try:
                nodes = (await self._client.list(NODES)).items
            except GpuloomError as error:
                _log.warning("nodes not listed", extra={"error": str(error)})
                nodes = ()
            size = cluster_size(nodes)
            gpus = size.nvidia_gpus + size.gpuloom_gpus
            if gpus and gpus == seen:
                return size
            seen = gpus
            await self._clock.sleep(1.0)

    def _on_pod(self, change: Change) -> None:
        uid = uid_of(change.object)
        if change.new is None:
            self._ended_s.pop(uid, None)
            self._running_s.pop(uid, None)
            self._give_up_s.pop(change.key, None)
            return
        phase = (change.new.get("status") or {}).get("phase")
        if phase in _TERMINAL_PHASES:
            self._ended_s.setdefault(uid, self._clock.monotonic())
        elif phase == "Running":
            self._running_s.setdefault(uid, self._clock.monotonic())

    async def _sweep(self) -> None:
        """Delete what ended long enough ago, and what waited in vain."""
        while True:
            await self._clock.sleep(SWEEP_S)
            now_s = self._clock.monotonic()
            for pod in self._pods.objects():
                ended_s = self._ended_s.get(uid_of(pod))
                is_old = ended_s is not None and now_s - ended_s >= self._settings.retention_s
                if is_old or self._is_hopeless(pod, now_s):
                    await self._delete(pod, DeleteOptions(uid=uid_of(pod)))
                elif ended_s is None and self._is_due_to_be_forced(pod, now_s):
                    await self._delete(pod, DeleteOptions(uid=uid_of(pod), grace_period_s=0))

    def _is_hopeless(self, pod: JsonObject, now_s: float) -> bool:
        due_s = self._give_up_s.get(key_of(pod))
        return due_s is not None and now_s >= due_s and not (pod.get("spec") or {}).get("nodeName")

    def _is_due_to_be_forced(self, pod: JsonObject, now_s: float) -> bool:
        running_s = self._running_s.get(uid_of(pod))
        name = key_of(pod)[1]
        return running_s is not None and is_forced(name) and now_s - running_s >= forced_after_s(name)

    async def _delete(self, pod: JsonObject, options: DeleteOptions) -> None:
        namespace, name = key_of(pod)
        try:
            await self._client.delete(PODS, name, namespace, options)
        except (ConflictError, NotFoundError):
            return
        except GpuloomError as error:
            _log.warning("pod not deleted", extra={"pod": f"{namespace}/{name}", "error": str(error)})


def is_forced(name: str) -> bool:
    """Whether the pod of this name is deleted by force."""
    return zlib.crc32(name.encode()) % FORCED_ONE_IN == 0


def forced_after_s(name: str) -> float:
    """How long such a pod runs before: nodes may show a young pod otherwise than one that is well known."""
    return FORCED_AFTER_S[zlib.crc32(name.encode()) // FORCED_ONE_IN % len(FORCED_AFTER_S)]


def with_fate(manifest: JsonObject) -> JsonObject:
    """The pod, with what shows on its node if it is one that is deleted by force."""
    metadata = manifest["metadata"]
    if not is_forced(metadata["name"]):
        return manifest
    stubborn = {ANNOTATION_LOAD: "0", ANNOTATION_SIGTERM: "ignored", ANNOTATION_DURATION: FORCED_DURATION}
    annotations = {**metadata["annotations"], **stubborn}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    settings = PlayerSettings(options.seed, options.rate, options.duration, options.retention)

    async def run() -> None:
        clock = SystemClock()
        async with KubeClient(api_access(options, clock), clock) as client:
            await WorkloadPlayer(client, settings, clock).run()

    return run_command("sim-workload", run)


def _parser() -> CommandParser:
    parser = CommandParser(prog="python -m gpuloom.sim.workloads.player", description="Plays a GPU workload.")
    add = parser.add_argument
    add_api_arguments(parser)
    add("--seed", type=int, default=0, help="equal seeds give equal pods (default 0)")
    add("--rate", type=_rate, metavar="PODS_PER_MINUTE", help="default: as many as keep the GPUs busy")
    add("--duration", type=duration_argument, metavar="TIME", help="stop creating pods after this")
    add(
        "--retention",
        type=duration_argument,
        default=20.0,
        metavar="TIME",
        help="keep ended pods (default 20s)",
    )
    return parser


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 60_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of pods a minute above 0")
    return rate


def _amount(node: JsonObject, resource: str) -> int:
    try:
        return quantity_value(_allocatable(node).get(resource, 0))
    except ValueError:
        return 0


def _allocatable(node: JsonObject) -> JsonObject:
    return (node.get("status") or {}).get("allocatable") or {}


if __name__ == "__main__":
    sys.exit(main())
