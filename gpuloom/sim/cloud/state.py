"""The simulated cloud's books: what was launched, and what becomes of it as time passes. No I/O, no clock.

Equal seeds and equal calls at equal times give equal instances.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.model.node import NodeMode
from gpuloom.sim.cloud.model import (
    CapacityType,
    Instance,
    InstanceGroup,
    InstanceState,
    NoCapacityError,
    Offering,
    OfferingKey,
    QuotaError,
    ThrottledError,
    TokenReusedError,
)

_LIVE = (InstanceState.PENDING, InstanceState.RUNNING)
_KEPT_TERMINATED_S = 3600.0


@dataclass(frozen=True, slots=True)
class CloudSettings:
    seed: int = 0
    boot_delay_s: tuple[float, float] = (30.0, 90.0)
    shutdown_s: float = 5.0
    notice_s: float = 120.0
    """How long before its end a spot instance is told of its interruption."""
    gpu_quota: Mapping[CapacityType, int] = field(default_factory=dict)
    """GPUs at once, by capacity type; absent: no limit."""
    calls_per_s: float = 50.0
    burst: int = 100


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """`token` makes it idempotent: the same request again gives the same instance."""

    offering: OfferingKey
    token: str = ""
    mode: NodeMode = NodeMode.GPULOOM
    group: str = ""


class CloudState:
    def __init__(self, offerings: Iterable[Offering], settings: CloudSettings | None = None) -> None:
        self._settings = settings or CloudSettings()
        self._offerings = {offering.key: offering for offering in offerings}
        self._instances: dict[str, Instance] = {}
        self._groups: dict[str, InstanceGroup] = {}
        self._requests: dict[str, tuple[LaunchRequest, str]] = {}
        self._launched = 0
        self._calls = float(self._settings.burst)
        self._counted_at_s: float | None = None

    def offerings(self) -> tuple[Offering, ...]:
        return tuple(self._offerings[key] for key in sorted(self._offerings))

    def instances(self) -> tuple[Instance, ...]:
        return tuple(self._instances[key] for key in sorted(self._instances))

    def groups(self) -> tuple[InstanceGroup, ...]:
        return tuple(self._groups[name] for name in sorted(self._groups))

    def instance(self, instance_id: str) -> Instance:
        if instance_id not in self._instances:
            raise NotFoundError(f"there is no instance {instance_id}")
        return self._instances[instance_id]

    def count_call(self, now_s: float) -> None:
        """Raise ThrottledError if calls come faster than the account may make them."""
        settings = self._settings
        passed_s = 0.0 if self._counted_at_s is None else max(0.0, now_s - self._counted_at_s)
        self._counted_at_s = now_s
        self._calls = min(settings.burst, self._calls + passed_s * settings.calls_per_s)
        if self._calls < 1:
            raise ThrottledError(f"more than {settings.calls_per_s:g} calls a second")
        self._calls -= 1

    def launch(self, request: LaunchRequest, now_s: float) -> Instance:
        """Raise NoCapacityError, QuotaError, TokenReusedError, or NotFoundError for what is not offered."""
        if request.token in self._requests:
            before, instance_id = self._requests[request.token]
            if before != request:
                raise TokenReusedError(f"the token {request.token} was used for another launch")
            return self._instances[instance_id]
        offering = self._offerings.get(request.offering)
        if offering is None:
            raise NotFoundError(f"{request.offering} is not offered")
        self._require_quota(offering)
        if offering.stock is not None and offering.stock <= 0:
            raise NoCapacityError(f"no capacity for {request.offering}")
        instance = self._new_instance(request, now_s)
        if offering.stock is not None:
            self.set_stock(offering.key, offering.stock - 1)
        self._instances[instance.instance_id] = instance
        if request.token:
            self._requests[request.token] = (request, instance.instance_id)
        return instance

    def terminate(self, instance_id: str, now_s: float) -> Instance:
        """The same again for one that is ending already, as clouds do."""
        instance = self.instance(instance_id)
        if instance.state not in _LIVE:
            return instance
        gone_at_s = now_s + self._settings.shutdown_s
        return self._put(replace(instance, state=InstanceState.SHUTTING_DOWN, gone_at_s=gone_at_s))

    def interrupt(self, instance_id: str, now_s: float, notice_s: float | None = None) -> Instance:
        """A spot instance is told that it ends. Raise InvalidRequestError for one that is not on spot."""
        instance = self.instance(instance_id)
        if instance.offering.capacity_type is not CapacityType.SPOT:
            raise InvalidRequestError(f"{instance_id} is not a spot instance")
        if instance.state not in _LIVE or instance.ends_at_s is not None:
            return instance
        after_s = self._settings.notice_s if notice_s is None else notice_s
        return self._put(replace(instance, ends_at_s=now_s + after_s))

    def put_group(self, group: InstanceGroup) -> InstanceGroup:
        """Raise InvalidRequestError unless min <= desired <= max."""
        if not 0 <= group.min_size <= group.desired <= group.max_size:
            raise InvalidRequestError(
                f"group {group.name}: desired {group.desired} is not between"
                f" {group.min_size} and {group.max_size}"
            )
        if group.offering not in self._offerings:
            raise NotFoundError(f"{group.offering} is not offered")
        self._groups[group.name] = group
        return group

    def set_desired(self, name: str, desired: int) -> InstanceGroup:
        if name not in self._groups:
            raise NotFoundError(f"there is no group {name}")
        return self.put_group(replace(self._groups[name], desired=desired))

    def set_stock(self, key: OfferingKey, stock: int | None) -> None:
        if key not in self._offerings:
            raise NotFoundError(f"{key} is not offered")
        self._offerings[key] = replace(self._offerings[key], stock=stock)

    def advance(self, now_s: float) -> None:
        """Let happen what is due: instances boot, end and are forgotten; groups launch and terminate."""
        for instance in self.instances():
            self._advance_one(instance, now_s)
        for group in self.groups():
            self._resize(group, now_s)

    def _advance_one(self, instance: Instance, now_s: float) -> None:
        if instance.ends_at_s is not None and now_s >= instance.ends_at_s:
            instance = self.terminate(instance.instance_id, now_s)
        if instance.state is InstanceState.PENDING and now_s >= instance.boots_at_s:
            self._put(replace(instance, state=InstanceState.RUNNING))
        elif instance.state is InstanceState.SHUTTING_DOWN and now_s >= (instance.gone_at_s or now_s):
            self._put(replace(instance, state=InstanceState.TERMINATED, gone_at_s=now_s))
            self._return_stock(instance.offering)
        elif instance.state is InstanceState.TERMINATED:
            self._forget(instance, now_s)

    def _resize(self, group: InstanceGroup, now_s: float) -> None:
        live = [one for one in self.instances() if one.group == group.name and one.state in _LIVE]
        staying = [one for one in live if one.ends_at_s is None]
        for instance in _newest_first(staying)[: max(0, len(staying) - group.desired)]:
            self.terminate(instance.instance_id, now_s)
        for _ in range(group.desired - len(staying)):
            try:
                self.launch(LaunchRequest(group.offering, "", group.mode, group.name), now_s)
            except (NoCapacityError, QuotaError):
                # A group keeps trying; that its size is short is all that its owner sees.
                return

    def _new_instance(self, request: LaunchRequest, now_s: float) -> Instance:
        self._launched += 1
        rng = random.Random(f"{self._settings.seed}/{self._launched}")
        return Instance(
            instance_id=f"i-{rng.getrandbits(40):010x}",
            offering=request.offering,
            mode=request.mode,
            state=InstanceState.PENDING,
            launched_at_s=now_s,
            boots_at_s=now_s + rng.uniform(*self._settings.boot_delay_s),
            group=request.group,
            token=request.token,
        )

    def _require_quota(self, offering: Offering) -> None:
        capacity_type = offering.key.capacity_type
        quota = self._settings.gpu_quota.get(capacity_type)
        used = sum(
            self._offerings[one.offering].gpus
            for one in self._instances.values()
            if one.offering.capacity_type is capacity_type and one.state is not InstanceState.TERMINATED
        )
        if quota is not None and used + offering.gpus > quota:
            raise QuotaError(
                f"{used} of {quota} {capacity_type} GPUs are in use; {offering.key} needs {offering.gpus}"
            )

    def _return_stock(self, key: OfferingKey) -> None:
        stock = self._offerings[key].stock
        if stock is not None:
            self.set_stock(key, stock + 1)

    def _forget(self, instance: Instance, now_s: float) -> None:
        if now_s - (instance.gone_at_s or now_s) >= _KEPT_TERMINATED_S:
            del self._instances[instance.instance_id]
            self._requests.pop(instance.token, None)

    def _put(self, instance: Instance) -> Instance:
        self._instances[instance.instance_id] = instance
        return instance


def _newest_first(instances: Sequence[Instance]) -> list[Instance]:
    return sorted(instances, key=lambda one: (-one.launched_at_s, one.instance_id))
