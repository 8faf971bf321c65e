"""Azure virtual machine scale sets, one for each pool.

Works with the role Virtual Machine Contributor. A change of `sku.capacity` takes no token: an order's
absolute size, derived from claims, takes its place. Long operations are not waited for: what came of them
shows in the scale set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError
from azure.identity import DefaultAzureCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.compute.models import VirtualMachineScaleSetVMInstanceRequiredIDs

from gpuloom.model.policies import CloudProvider
from gpuloom.runtime.clock import Clock
from services.autoscaler.clouds.azure_reading import error_kind, failures_of, group_of, instance_of, is_ending
from services.autoscaler.clouds.groups import read_groups
from services.autoscaler.clouds.threads import Threads
from services.autoscaler.core.lifecycle.machines import (
    CloudView,
    FailureKind,
    Instance,
    Order,
    PricedOffering,
)
from services.autoscaler.ports import CloudError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """`groups`: scale set by pool. `credential` None: as Azure's libraries find it. `options`: for tests."""

    subscription: str
    resource_group: str
    groups: Mapping[str, str]
    credential: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


class AzureCloud:
    provider = CloudProvider.AZURE

    def __init__(self, settings: AzureSettings, clock: Clock) -> None:
        self._settings = settings
        self._threads = Threads("azure", clock)
        credential = settings.credential or DefaultAzureCredential()
        client = ComputeManagementClient(
            credential, settings.subscription, retry_total=2, **dict(settings.options)
        )
        self._sets: Any = client.virtual_machine_scale_sets
        self._machines: Any = client.virtual_machine_scale_set_vms

    async def observe(self) -> CloudView:
        return await self._call(self._observe)

    async def request(self, order: Order) -> Instance | None:
        await self._call(lambda: self._raise_size(order.group, order.size))
        return None

    async def cancel(self, group: str, size: int) -> None:
        await self._call(lambda: self._lower_size(group, size))

    async def terminate(self, instance: Instance) -> None:
        await self._call(lambda: self._terminate(instance))

    async def offerings(self) -> Sequence[PricedOffering]:
        return []

    def close(self) -> None:
        self._threads.close()

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await self._threads.run(lambda: _translated(call))

    def _observe(self) -> CloudView:
        def read(pool: str, name: str) -> CloudView:
            return _translated(lambda: self._read(pool, name))

        return read_groups(self.provider, self._settings.groups, read)

    def _read(self, pool: str, name: str) -> CloudView:
        group, listed = group_of(self._get(name), pool), self._list(name)
        instances = tuple(instance_of(one, group) for one in listed)
        return CloudView(self.provider, instances, (group,), tuple(failures_of(listed, name)))

    def _get(self, name: str) -> Any:
        return self._sets.get(self._settings.resource_group, name)

    def _list(self, name: str) -> list[Any]:
        return list(self._machines.list(self._settings.resource_group, name))

    def _raise_size(self, name: str, size: int) -> None:
        if size > (self._get(name).sku.capacity or 0):
            self._resize(name, size)

    def _lower_size(self, name: str, size: int) -> None:
        # Shrinking a set lets Azure choose what goes, so it never shrinks below what is there.
        least = max(size, len(self._list(name)))
        if least < (self._get(name).sku.capacity or 0):
            self._resize(name, least)

    def _resize(self, name: str, size: int) -> None:
        # An update changes what it names; a whole definition could reset what it leaves out.
        self._sets.begin_update(
            self._settings.resource_group, name, {"sku": {"capacity": size}}, polling=False
        )

    def _terminate(self, instance: Instance) -> None:
        number = instance.instance_id.rsplit("/", 1)[-1]
        present = {one.instance_id: one for one in self._list(instance.group)}
        if number not in present or is_ending(present[number]):
            return
        self._sets.begin_delete_instances(
            self._settings.resource_group,
            instance.group,
            VirtualMachineScaleSetVMInstanceRequiredIDs(instance_ids=[number]),
            polling=False,
        )


def _translated(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except HttpResponseError as error:
        raise CloudError(error_kind(error), error.message) from error
    except AzureError as error:
        raise CloudError(FailureKind.UNKNOWN, str(error)) from error
