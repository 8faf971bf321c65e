"""Looks up the admission policies once a minute while this replica leads, and tells who needs to know.

Told are Prometheus (a gauge for each policy), the log (once for each change), `explain` (a note), and the
leader's own pod (a condition). Whatever goes wrong here changes nothing else.
"""

import logging
from collections.abc import Callable

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, ObjectKey, resource_version_of
from gpuloom.kube.resources import ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS, PODS, Resource
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.objects.admission_policies import (
    PolicyStatus,
    missing_note,
    policy_problem,
    too_old,
    version_of,
    with_condition,
)
from services.scheduler_extender.metrics import ExtenderMetrics

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 60.0
_LEADER_INTERVAL_S = 1.0
_TIMEOUT_S = 3.0


class PolicyWatch:
    """`names` are of policies and of their bindings alike. Without an `own_pod` there is no condition."""

    def __init__(
        self,
        client: KubeClient,
        names: tuple[str, ...],
        own_pod: ObjectKey | None,
        clock: Clock,
        metrics: ExtenderMetrics,
    ) -> None:
        self._client = client
        self._names = names
        self._own_pod = own_pod
        self._clock = clock
        self._metrics = metrics
        self._statuses: dict[str, PolicyStatus] = {}
        self._complained = False

    def note(self) -> str:
        """For `explain`; empty if nothing is known to be missing."""
        return missing_note(self._statuses.values())

    async def run(self, is_leader: Callable[[], bool]) -> None:
        while True:
            leads = is_leader()
            if leads:
                await self.check()
            await self._clock.sleep(CHECK_INTERVAL_S if leads else _LEADER_INTERVAL_S)

    async def check(self) -> None:
        for name in self._names:
            self._tell(await self._status(name))
        if self._own_pod is not None:
            await self._write_condition(self._own_pod)

    async def _status(self, name: str) -> PolicyStatus:
        try:
            policy = await self._read(ADMISSION_POLICIES, name)
            binding = await self._read(ADMISSION_POLICY_BINDINGS, name)
            problem = policy_problem(name, policy, binding)
            if policy is None:
                problem = too_old(await self._version()) or problem
        except GpuloomError as error:
            return PolicyStatus(name, None, str(error))
        return PolicyStatus(name, not problem, problem)

    async def _read(self, resource: Resource, name: str) -> JsonObject | None:
        try:
            return await self._client.get(resource, name, timeout_s=_TIMEOUT_S)
        except NotFoundError:
            return None

    async def _version(self) -> tuple[int, int] | None:
        return version_of(await self._client.version(timeout_s=_TIMEOUT_S))

    def _tell(self, status: PolicyStatus) -> None:
        before, self._statuses[status.name] = self._statuses.get(status.name), status
        self._metrics.set_policy_installed(status.name, status.installed)
        if before is not None and before.installed is status.installed:
            return
        fields = {"policy": status.name, "reason": status.reason}
        match status.installed:
            case True:
                _log.info("an admission policy is in force", extra=fields)
            case False:
                _log.warning("an admission policy is not in force", extra=fields)
            case None:
                _log.warning("whether an admission policy is in force is not known", extra=fields)

    async def _write_condition(self, own_pod: ObjectKey) -> None:
        namespace, name = own_pod
        try:
            pod = await self._client.get(PODS, name, namespace, timeout_s=_TIMEOUT_S)
            present = (pod.get("status") or {}).get("conditions") or []
            conditions = with_condition(present, self._statuses.values(), self._clock.now())
            if conditions is not None:
                # Such a patch replaces the list whole: a write in between makes it fail, and it is made anew.
                await self._client.patch_status(
                    PODS,
                    name,
                    namespace,
                    {"status": {"conditions": conditions}},
                    resource_version=resource_version_of(pod),
                    timeout_s=_TIMEOUT_S,
                )
        except GpuloomError as error:
            self._complain(error)
            return
        self._complained = False

    def _complain(self, error: GpuloomError) -> None:
        """Once, until it works again."""
        if not self._complained:
            _log.warning("condition of admission policies not written", extra={"reason": str(error)})
        self._complained = True
