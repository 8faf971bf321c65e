"""Which of several replicas of a service acts: its settings, and its work while it holds the lease.

    leadership: LeadershipConfig = leadership_group("cost_engine")
    ...
    leadership = Leadership(client, config.leadership, app.clock, os.environ)
    app.add_loop("leadership", lambda: leadership.run(work))
    await client.patch(..., timeout_s=leadership.write_timeout_s(5.0))

Whoever loses its lease ends with its process, and Kubernetes starts another, so that no belief of an earlier
term is mixed into a later one. A service that also serves without leading stands again instead.
"""

import logging
import math
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gpuloom.errors import GpuloomError, NotReadyError
from gpuloom.kube.leader import LeaderElector, LeaderSettings, LeaseApi
from gpuloom.kube.objects import ObjectKey
from gpuloom.roster import ROSTER
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.parsers import boolean, integer, text

PRODUCT_NAMESPACE = "gpuloom-system"
LEAST_WRITE_S = 0.2
"""With less left of the lease nothing is sent: it would not arrive within it."""

_IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""The kubelet sets this for every container."""
_WARM_CHECK_S = 0.2
_DURATION = integer(2, 60)

_log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class Elector(Protocol):
    def leader_until_s(self) -> float:
        """The monotonic time up to which nobody else can be the leader; in the past: not the leader."""

    async def run(self, work: Work) -> None:
        """Wait to be the leader, then run the work; LeadershipLostError if it was stopped by a loss."""


class Unopposed:
    """The elector of a replica that is known to be the only one."""

    def leader_until_s(self) -> float:
        return math.inf

    async def run(self, work: Work) -> None:
        await work()


@dataclass(frozen=True)
class LeadershipConfig:
    """Settings of the lease; `leadership_group` knows the names of each service's own."""

    election: bool | None = setting(
        "GPULOOM_LEADER_ELECTION", default=None, parse=boolean, help="Whether replicas choose a leader"
    )
    lease_namespace: str | None = setting(
        "GPULOOM_LEASE_NAMESPACE", default=None, parse=text, help="Namespace of the Lease"
    )
    lease_name: str = setting("GPULOOM_LEASE_NAME", default=REQUIRED, parse=text, help="Its name")
    lease_duration_s: int = setting(
        "GPULOOM_LEASE_DURATION", default=6, parse=_DURATION, help="Seconds until a silent leader is replaced"
    )
    pod_name: str | None = setting(
        "GPULOOM_POD_NAME", default=None, parse=text, help="Name of the pod this runs in"
    )
    pod_namespace: str | None = setting(
        "GPULOOM_POD_NAMESPACE", default=None, parse=text, help="Namespace of the pod this runs in"
    )

    def problems(self) -> Iterable[str]:
        if self.pod_name and not self.pod_namespace:
            yield "GPULOOM_POD_NAME needs GPULOOM_POD_NAMESPACE"

    def elects(self, environ: Mapping[str, str]) -> bool:
        """Two that act without an election would act twice, so every pod has one unless told."""
        if self.election is not None:
            return self.election
        return self.pod_namespace is not None or _IN_A_POD in environ

    def namespace(self) -> str:
        return self.lease_namespace or self.pod_namespace or PRODUCT_NAMESPACE

    def own_pod(self) -> ObjectKey | None:
        if self.pod_name is None or self.pod_namespace is None:
            return None
        return self.pod_namespace, self.pod_name

    def identity(self) -> str:
        """A pod's name may come back after a restart of its container; the process it names does not."""
        return f"{self.pod_name or socket.gethostname()}-{secrets.token_hex(4)}"

    def lease_settings(self, renewals: int = 6) -> LeaderSettings:
        """`renewals`: how many there are in one duration of the lease, if all goes well."""
        duration_s = self.lease_duration_s
        return LeaderSettings(
            lease_duration_s=duration_s,
            renew_deadline_s=duration_s * 2 / 3,
            retry_period_s=duration_s / renewals,
            request_timeout_s=duration_s / 3,
            margin_s=duration_s / 12,
        )

    def elector(self, api: LeaseApi, clock: Clock, identity: str, renewals: int = 6) -> LeaderElector:
        return LeaderElector(
            api, self.namespace(), self.lease_name, identity, clock, self.lease_settings(renewals)
        )


def leadership_group(service: str, *, election: bool | None = None) -> LeadershipConfig:
    """Declare the field of a service's configuration that holds these settings.

    `election` is the default of that setting; None: in a pod there is one, and elsewhere there is none.
    """
    prefix = f"GPULOOM_{ROSTER[service].short.upper()}"
    lease = f"gpuloom-{service.replace('_', '-')}"
    by_default = election

    @dataclass(frozen=True)
    class Config(LeadershipConfig):
        election: bool | None = setting(
            f"{prefix}_LEADER_ELECTION",
            default=by_default,
            parse=boolean,
            help="Whether replicas choose a leader by a Lease"
            + ("" if by_default else "; they do by default in a pod, and not elsewhere"),
        )
        lease_namespace: str | None = setting(
            f"{prefix}_LEASE_NAMESPACE",
            default=None,
            parse=text,
            help=f"Namespace of the Lease; by default that of the pod, else {PRODUCT_NAMESPACE}",
        )
        lease_name: str = setting(
            f"{prefix}_LEASE_NAME", default=lease, parse=text, help="Its name; the Role names it, too"
        )
        lease_duration_s: int = setting(
            f"{prefix}_LEASE_DURATION",
            default=6,
            parse=_DURATION,
            help="Seconds after which a silent leader is replaced",
        )

    return group(Config)


class OnLoss(Enum):
    END = "end"
    """Raise, and end the process."""
    STAND_AGAIN = "stand again"


class Leadership:
    """One replica. Does its work while no other replica can, and bounds its writes by the lease."""

    def __init__(
        self,
        api: LeaseApi,
        config: LeadershipConfig,
        clock: Clock,
        environ: Mapping[str, str],
        on_loss: OnLoss = OnLoss.END,
    ) -> None:
        self.identity = config.identity()
        self._clock = clock
        self._on_loss = on_loss
        self._backoff = Backoff(1.0, 30.0)
        self._elector: Elector = (
            config.elector(api, clock, self.identity) if config.elects(environ) else Unopposed()
        )
        self._working = False

    def is_leader(self) -> bool:
        return self._working and self._clock.monotonic() < self._elector.leader_until_s()

    def write_timeout_s(self, most_s: float) -> float:
        """How long a write may take that is sent now, so that it ends before somebody else can lead.

        A process that was stopped in between does not know that it was: ask right before each write. Raise
        NotReadyError if it does not lead, or if too little is left.
        """
        left_s = self._elector.leader_until_s() - self._clock.monotonic() if self._working else 0.0
        if left_s < LEAST_WRITE_S:
            raise NotReadyError("too little is left of the lease to write within it")
        return min(most_s, left_s)

    async def run(self, work: Work, is_warm: Callable[[], bool] | None = None) -> None:
        """Stand for election once warm, and do the work while elected.

        A replica that would first have to list must not take the lease from one that is warm.
        """
        while is_warm is not None and not is_warm():
            await self._clock.sleep(_WARM_CHECK_S)
        while True:
            try:
                await self._elector.run(lambda: self._lead(work))
            except GpuloomError as error:
                if self._on_loss is OnLoss.END:
                    raise
                _log.warning("leads no more, standing for election again", extra={"reason": str(error)})
            else:
                if self._on_loss is OnLoss.END:
                    return
            await self._clock.sleep(self._backoff.next_delay_s())

    async def _lead(self, work: Work) -> None:
        self._backoff.reset()
        self._working = True
        try:
            await work()
        finally:
            self._working = False
