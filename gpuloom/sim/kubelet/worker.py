"""Follows one pod on one host from its binding to its end: asks `lifecycle` what is next and does it.

Everything that touches devices happens between two awaits, so two pods of a host never choose at once.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubelet.host import Host
from gpuloom.sim.kubelet.lifecycle import Action, Step, next_step, view_of
from gpuloom.sim.kubelet.status import ended_status, refused_status, running_status
from gpuloom.sim.wakeup import wait_changed

_log = logging.getLogger(__name__)

# When Kubernetes contradicts what the cache says, the change is on its way; look again after this at most.
RECHECK_S = 5.0


class PodApi(Protocol):
    async def write_status(self, pod: PodRef, status: JsonObject) -> None:
        """Raise NotFoundError or ConflictError if there is no such pod of that UID."""

    async def confirm_delete(self, pod: PodRef) -> None:
        """Remove the pod for good. Raise as write_status does."""


class PodWorker:
    """`current` gives the pod as Kubernetes shows it, None once it is gone; `poke` says that it changed."""

    def __init__(
        self, pod: PodRef, host: Host, api: PodApi, clock: Clock, current: Callable[[], JsonObject | None]
    ) -> None:
        self._pod = pod
        self._host = host
        self._api = api
        self._clock = clock
        self._current = current
        self._changed = asyncio.Event()
        self._reported_phase = ""

    def poke(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Return when the pod is gone and nothing of it is left on the machine."""
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            self._changed.clear()
            pod = self._current()
            view = None if pod is None else view_of(pod, self._reported_phase)
            step = next_step(view, self._host.hosted.get(self._pod.uid), self._host.now_s())
            if step.action is Action.WAIT:
                timeout_s = None if step.until_s is None else step.until_s - self._host.now_s()
                await wait_changed(self._changed, self._clock, timeout_s)
                continue
            try:
                await self._act(step, pod)
                backoff.reset()
            except (NotFoundError, ConflictError):
                await wait_changed(self._changed, self._clock, RECHECK_S)
            except GpuloomError as error:
                _log.warning(
                    "can't tell Kubernetes about a pod", extra={"pod": str(self._pod), "error": str(error)}
                )
                await self._clock.sleep(backoff.next_delay_s())
            if step.action is Action.FORGET and pod is None:
                return

    async def _act(self, step: Step, pod: JsonObject | None) -> None:
        uid = self._pod.uid
        match step.action:
            case Action.STOP_SOON:
                self._host.stop_soon(uid, vanished=pod is None)
            case Action.EXIT:
                self._host.exit(uid, killed=step.killed)
            case Action.FORGET:
                self._host.forget(uid)
            case Action.CONFIRM_DELETE:
                await self._api.confirm_delete(self._pod)
                await wait_changed(self._changed, self._clock, RECHECK_S)
            case _ if pod is not None:
                await self._act_on_live_pod(step, pod)

    async def _act_on_live_pod(self, step: Step, pod: JsonObject) -> None:
        now = self._clock.now()
        match step.action:
            case Action.ADMIT:
                self._host.admit(pod)
            case Action.REPORT_RUNNING:
                await self._report(running_status(pod, now))
            case Action.REPORT_LOST:
                await self._report(ended_status(pod, "Failed", "ContainerLost", now))
            case Action.REPORT_END:
                hosted = self._host.hosted[self._pod.uid]
                refused = not hosted.containers
                await self._report(
                    refused_status(hosted.reason, hosted.message, now)
                    if refused
                    else ended_status(pod, hosted.outcome, hosted.reason, now)
                )

    async def _report(self, status: JsonObject) -> None:
        await self._api.write_status(self._pod, status)
        self._reported_phase = str(status["phase"])
