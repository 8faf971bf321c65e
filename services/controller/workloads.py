"""Takes the step that the core decided on for one GPUWorkload, and writes its status.

One bounded step, then observe again. A Job's name follows from the workload and the attempt, so a step that
was taken twice, by this controller or by one before it, makes one Job.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.codec.custom.reading import MAX_MESSAGE
from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.errors import InvalidRequestError, NotAllowedError, TooLargeError
from gpuloom.kube.conditions import (
    is_deleting,
    status_patch,
    with_conditions,
    with_finalizer,
    without_finalizer,
)
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, ObjectKey, metadata_of, uid_of
from gpuloom.kube.reconciler import Step
from gpuloom.model.workload import GpuWorkload, WorkloadPhase
from gpuloom.placement.strategies import Strategy
from gpuloom.runtime.clock import Clock
from services.controller.core.lifecycle import PLACED, Decision, NewStatus, Observed, decide, refused
from services.controller.core.manifests import JobOptions, is_owned, job_manifest, job_name
from services.controller.core.progress import FailureReason
from services.controller.core.strategies import choose_node
from services.controller.metrics import ControllerMetrics
from services.controller.ports import Cluster, WorkloadApi

FINALIZER = "gpu.warp.dev/jobs"
_DELETION_CHECK_S = 5.0
_NO_NODE_CHECK_S = 30.0
_IMAGE_CHECK_S = 60.0
_UNOBSERVED_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """`pins_nodes`: strategies are made node affinities here, because our extender is not the scheduler.

    `gives_shares`: how GPUs are asked for; None: as most nodes with GPUs give them out.
    """

    strategies: Mapping[str, Strategy]
    priority_class_prefix: str
    scheduler_name: str | None
    pins_nodes: bool
    gives_shares: bool | None


class Workloads:
    def __init__(
        self,
        api: WorkloadApi,
        cluster: Cluster,
        recorder: EventRecorder,
        settings: WorkloadSettings,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._recorder = recorder
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._making: dict[str, tuple[float, JsonObject]] = {}
        """Jobs that must go to a node, since when, by name: whoever chooses next may not observe them yet."""

    async def reconcile(self, key: ObjectKey, obj: JsonObject | None) -> Step:
        if obj is None:
            return Step()
        with self._metrics.reconciling():
            if is_deleting(obj):
                return await self._clean_up(obj)
            return await self._advance(obj)

    async def _advance(self, obj: JsonObject) -> Step:
        finalizer = with_finalizer(obj, FINALIZER)
        if finalizer is not None:
            # Before any Job: a workload that is deleted at once must not leave one behind.
            return Step(wrote=await self._api.patch(obj, finalizer))
        try:
            workload = gpu_workload(obj)
        except InvalidRequestError as error:
            return await self._refuse(obj, str(error), None)
        try:
            return await self._take(obj, workload)
        except InvalidRequestError as error:
            return await self._refuse(obj, str(error), _IMAGE_CHECK_S)

    async def _take(self, obj: JsonObject, workload: GpuWorkload) -> Step:
        uid = workload.meta.uid
        observed = Observed(workload, self._cluster.jobs_of(uid), self._cluster.pods_of(uid))
        decision = decide(observed, self._clock.now())
        for name in decision.outdated:
            await self._api.delete_job(workload.meta.namespace, name, None)
        if decision.attempt is not None:
            refusal = await self._start(obj, workload, decision)
            if refusal is not None:
                return await self._refuse(obj, refusal, _NO_NODE_CHECK_S)
        wrote = await self._write(obj, decision.status)
        if wrote is not None:
            self._tell(obj, workload, decision)
        return Step(wrote=wrote, again_after_s=decision.again_after_s)

    async def _start(self, obj: JsonObject, workload: GpuWorkload, decision: Decision) -> str | None:
        """Make the Job of this attempt, once. A text says why it can't be made now."""
        attempt = decision.attempt or 0
        options = self._options(workload)
        if isinstance(options, str):
            return options
        name = job_name(workload, attempt)
        manifest = job_manifest(workload, attempt, options)
        if options.node is not None:
            # Before the others choose: they would all find the same node free.
            self._making[name] = self._clock.monotonic(), manifest
        try:
            made = await self._api.create_job(manifest)
        except (NotAllowedError, TooLargeError) as error:
            # A quota, somebody's admission: only the user can see to it.
            self._making.pop(name, None)
            return str(error)
        if made is None:
            present = await self._api.read_job(workload.meta.namespace, name)
            if present is not None and not is_owned(present, workload.meta.uid):
                raise InvalidRequestError(
                    f"Job {name} belongs to somebody else; delete or rename it, then this workload goes on"
                )
            return None
        fields = {"workload": f"{workload.meta.namespace}/{workload.meta.name}", "job": name}
        _log.info("job created", extra={**fields, "attempt": attempt, "strategy": workload.spec.strategy})
        self._recorder.normal(obj, "JobCreated", f"created Job {name}")
        if attempt:
            self._metrics.retries.inc()
            self._metrics.failed.labels(decision.failure or FailureReason.JOB_FAILED).inc()
        return None

    def _options(self, workload: GpuWorkload) -> JobOptions | str:
        settings, spec = self._settings, workload.spec
        strategy = settings.strategies.get(spec.strategy)
        if strategy is None:
            known = ", ".join(sorted(settings.strategies))
            raise InvalidRequestError(f"there is no strategy {spec.strategy}; known are {known}")
        node = None
        if settings.pins_nodes:
            node = self._chosen_host(strategy, workload)
            # Slices are not counted, and a gang may be on many nodes: where no one fits placement decides.
            if node is None and spec.gang is None and spec.mig_profile is None:
                return f"no ready node has {spec.gpu_count} free GPUs for strategy {spec.strategy}"
        shares = settings.gives_shares
        if shares is None:
            shares = self._cluster.gives_shares()
        return JobOptions(
            image=self._cluster.image_of(spec.model_name),
            gives_shares=shares,
            priority_class_prefix=settings.priority_class_prefix,
            scheduler_name=settings.scheduler_name,
            node=node,
            gpu_memory_mib=self._cluster.gpu_memory_mib(),
        )

    def _chosen_host(self, strategy: Strategy, workload: GpuWorkload) -> str | None:
        spec, now_s = workload.spec, self._clock.monotonic()
        self._making = {
            name: (since_s, job)
            for name, (since_s, job) in self._making.items()
            if now_s - since_s < _UNOBSERVED_S
        }
        nodes = self._cluster.nodes([job for _, job in self._making.values()])
        gpus = spec.gpu_count * (1 if spec.gang is None else spec.gang.size)
        try:
            chosen = choose_node(strategy, nodes, gpus, workload.meta.uid)
        except Exception as error:
            # It may be anybody's code, and others have to go on.
            _log.exception("a strategy failed", extra={"strategy": spec.strategy})
            raise InvalidRequestError(f"strategy {spec.strategy} failed: {error!r}") from error
        return None if chosen is None else chosen.hostname

    async def _refuse(self, obj: JsonObject, reason: str, again_s: float | None) -> Step:
        known = obj.get("status") or {}
        wrote = await self._write(obj, refused(reason, known.get("retries") or 0, known.get("jobName")))
        if wrote is not None:
            self._recorder.warning(obj, "NotStarted", reason)
            self._metrics.failed.labels(FailureReason.INVALID_SPEC).inc()
        return Step(wrote=wrote, again_after_s=again_s)

    async def _write(self, obj: JsonObject, new: NewStatus) -> JsonObject | None:
        before = (obj.get("status") or {}).get("conditions") or []
        generation = metadata_of(obj).get("generation") or 0
        status = {
            "phase": new.phase.value,
            # A scheduler's reasons for thousands of nodes are longer than the schema allows.
            "message": new.message[:MAX_MESSAGE],
            "retries": new.retries,
            "assignedNode": new.node,
            "jobName": new.job,
            "conditions": with_conditions(before, new.conditions, generation, self._clock.now()),
        }
        patch = status_patch(obj, status)
        return None if patch is None else await self._api.patch_status(obj, patch)

    def _tell(self, obj: JsonObject, workload: GpuWorkload, decision: Decision) -> None:
        """What changed with this write: once for each phase, in the log, an Event and the metrics."""
        before, now = workload.status.phase, decision.status.phase
        if before is now:
            return
        where = f"{workload.meta.namespace}/{workload.meta.name}"
        _log.info(
            "phase changed", extra={"workload": where, "phase": now.value, "why": decision.status.message}
        )
        if now in PLACED and before not in PLACED:
            self._metrics.scheduled.labels(workload.spec.strategy).inc()
        if now is WorkloadPhase.FAILED:
            self._metrics.failed.labels(FailureReason.RETRIES_EXHAUSTED).inc()
            self._recorder.warning(obj, "Failed", decision.status.message)
        else:
            self._recorder.normal(obj, now.value, decision.status.message)

    async def _clean_up(self, obj: JsonObject) -> Step:
        patch = without_finalizer(obj, FINALIZER)
        if patch is None:
            return Step()
        namespace = str(obj["metadata"].get("namespace") or "")
        jobs = [job for job in self._cluster.jobs_of(uid_of(obj)) if is_owned(job, uid_of(obj))]
        names = {str(job["metadata"]["name"]): uid_of(job) for job in jobs}
        await self._add_unobserved(obj, namespace, names)
        for name, uid in names.items():
            await self._api.delete_job(namespace, name, uid)
        if names:
            return Step(again_after_s=_DELETION_CHECK_S)
        return Step(wrote=await self._api.patch(obj, patch))

    async def _add_unobserved(self, obj: JsonObject, namespace: str, names: dict[str, str]) -> None:
        """The last Job that was made may not have been observed yet."""
        told = str((obj.get("status") or {}).get("jobName") or "")
        if told and told not in names:
            job = await self._api.read_job(namespace, told)
            if job is not None and is_owned(job, uid_of(obj)):
                names[told] = uid_of(job)
