"""GPUHolds as a Kubernetes keeps them that answers at once."""

from copy import deepcopy
from datetime import datetime

from gpuloom.codec.hold import hold_from_object, hold_to_object
from gpuloom.errors import NotAllowedError, NotFoundError
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_time
from gpuloom.model.ledger import Hold


class HoldObjects:
    """GPUHolds in Kubernetes; after `left_before_failure` no more can be made."""

    def __init__(self) -> None:
        self.objects: dict[str, JsonObject] = {}
        self.left_before_failure: int | None = None
        self._serial = 0

    async def create(self, hold: Hold, *, timeout_s: float) -> Hold:
        if hold.name in self.objects:
            raise AlreadyExistsError(hold.name)
        if self.left_before_failure is not None:
            self.left_before_failure -= 1
            if self.left_before_failure < 0:
                raise NotAllowedError("no more holds")
        self._serial += 1
        made = hold_to_object(hold)
        made["metadata"] |= {"uid": f"uid-hold-{self._serial}", "resourceVersion": str(self._serial)}
        self.objects[hold.name] = made
        return hold_from_object(made)

    async def read(self, name: str) -> Hold:
        if name not in self.objects:
            raise NotFoundError(name)
        return hold_from_object(self.objects[name])

    async def renew(self, hold: Hold, expires: datetime | None, *, timeout_s: float) -> Hold:
        if hold.name not in self.objects:
            raise NotFoundError(hold.name)
        self._serial += 1
        changed = deepcopy(self.objects[hold.name])
        changed["spec"]["expiresAt"] = None if expires is None else format_time(expires)
        changed["metadata"]["resourceVersion"] = str(self._serial)
        self.objects[hold.name] = changed
        return hold_from_object(changed)

    async def delete(self, hold: Hold, *, timeout_s: float, at_version: bool = False) -> None:
        if self.objects.pop(hold.name, None) is None:
            raise NotFoundError(hold.name)
