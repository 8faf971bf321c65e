"""Google Cloud managed instance groups, one zonal group for each pool; the zone is found by itself.

Works with the roles compute.instanceAdmin.v1 and compute.viewer. `resize` takes no token: an order's absolute
size, derived from claims, takes its place. Operations are polled here, because the SDK's own waiting asks
another endpoint than the one it was given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import compute_v1

from gpuloom.model.policies import CloudProvider
from gpuloom.runtime.clock import Clock
from services.autoscaler.clouds.gcp_reading import (
    Template,
    error_kind,
    failures_of,
    group_of,
    instance_of,
    last_part,
    operation_failure,
    region_of,
    template_of,
)
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

_CALL_S = 15.0
_REGIONAL = "regional groups are not supported: make a group in each zone, and a pool for each"


@dataclass(frozen=True, slots=True)
class GcpSettings:
    """`groups`: managed instance group by pool. `endpoint_url` and `credentials` None: Google's own."""

    project: str
    region: str
    groups: Mapping[str, str]
    endpoint_url: str | None = None
    credentials: Any = None


class GcpCloud:
    """Credentials come from the environment or workload identity, as Google's libraries find them."""

    provider = CloudProvider.GCP

    def __init__(self, settings: GcpSettings, clock: Clock) -> None:
        self._settings = settings
        self._threads = Threads("gcp", clock)
        options = None if settings.endpoint_url is None else ClientOptions(api_endpoint=settings.endpoint_url)
        given: dict[str, Any] = {"credentials": settings.credentials, "client_options": options}
        self._groups: Any = compute_v1.InstanceGroupManagersClient(**given)
        self._templates: Any = compute_v1.InstanceTemplatesClient(**given)
        self._regional: Any = compute_v1.RegionInstanceTemplatesClient(**given)
        self._operations: Any = compute_v1.ZoneOperationsClient(**given)
        self._zones: dict[str, str] = {}
        self._known_templates: dict[str, Template] = {}

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
        found = self._get(name)
        template = self._template(found)
        group = group_of(found, pool, self._zone_of(name), template)
        listed = self._managed(name)
        instances = (instance_of(one, group, self._settings.project, template) for one in listed)
        return CloudView(self.provider, tuple(instances), (group,), tuple(failures_of(listed, name)))

    def _get(self, name: str) -> Any:
        known = name in self._zones
        try:
            return self._groups.get(
                project=self._settings.project,
                zone=self._zone_of(name),
                instance_group_manager=name,
                timeout=_CALL_S,
            )
        except exceptions.NotFound:
            if not known:
                raise
            # It may have been made anew in another zone.
            del self._zones[name]
            return self._get(name)

    def _managed(self, name: str) -> list[Any]:
        return list(
            self._groups.list_managed_instances(
                project=self._settings.project,
                zone=self._zone_of(name),
                instance_group_manager=name,
                timeout=_CALL_S,
            )
        )

    def _zone_of(self, name: str) -> str:
        if name not in self._zones:
            self._zones[name] = self._find_zone(name)
        return self._zones[name]

    def _find_zone(self, name: str) -> str:
        request = compute_v1.AggregatedListInstanceGroupManagersRequest(
            project=self._settings.project, filter=f"name = {name}"
        )
        regional = False
        for scope, listed in self._groups.aggregated_list(request=request, timeout=_CALL_S):
            if any(one.name == name for one in listed.instance_group_managers):
                place = last_part(scope)
                if scope.startswith("zones/") and place.startswith(f"{self._settings.region}-"):
                    return place
                regional = regional or scope.startswith("regions/")
        text = f"there is no instance group {name} in a zone of {self._settings.region}"
        raise CloudError(FailureKind.CONFIGURATION, f"{text}; {_REGIONAL}" if regional else text)

    def _template(self, group: Any) -> Template:
        """Of a group that is being moved to another template the new one. One that is gone tells nothing."""
        listed = [one.instance_template for one in group.versions]
        url = group.instance_template or next(filter(None, reversed(listed)), "")
        if url and url not in self._known_templates:
            try:
                self._known_templates[url] = template_of(self._find_template(url))
            except exceptions.NotFound:
                return Template()
        return self._known_templates.get(url, Template())

    def _find_template(self, url: str) -> Any:
        given = {
            "project": self._settings.project,
            "instance_template": last_part(url),
            "timeout": _CALL_S,
        }
        region = region_of(url)
        return self._regional.get(region=region, **given) if region else self._templates.get(**given)

    def _raise_size(self, name: str, size: int) -> None:
        if size > self._get(name).target_size:
            self._resize(name, size)

    def _lower_size(self, name: str, size: int) -> None:
        # Shrinking a group lets Google choose what goes, so it never shrinks below what is there.
        least = max(size, len(self._managed(name)))
        if least < self._get(name).target_size:
            self._resize(name, least)

    def _resize(self, name: str, size: int) -> None:
        zone = self._zone_of(name)
        operation = self._groups.resize(
            project=self._settings.project,
            zone=zone,
            instance_group_manager=name,
            size=size,
            timeout=_CALL_S,
        )
        self._refuse_failed(operation.name, zone)

    def _terminate(self, instance: Instance) -> None:
        zone = self._zone_of(instance.group)
        wanted = f"zones/{zone}/instances/{instance.instance_id}"
        present = {last_part(one.instance) for one in self._managed(instance.group)}
        if instance.instance_id not in present:
            return
        resource = compute_v1.InstanceGroupManagersDeleteInstancesRequest(
            instances=[wanted], skip_instances_on_validation_error=True
        )
        operation = self._groups.delete_instances(
            project=self._settings.project,
            zone=zone,
            instance_group_manager=instance.group,
            instance_group_managers_delete_instances_request_resource=resource,
            timeout=_CALL_S,
        )
        self._refuse_failed(operation.name, zone)

    def _refuse_failed(self, operation: str, zone: str) -> None:
        """An operation that has failed by now; one that goes on shows its outcome in the group."""
        found = self._operations.get(
            project=self._settings.project, zone=zone, operation=operation, timeout=_CALL_S
        )
        failure = operation_failure(found)
        if failure is not None:
            raise CloudError(*failure)


def _translated(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except exceptions.GoogleAPICallError as error:
        raise CloudError(error_kind(error), str(error)) from error
    except (exceptions.GoogleAPIError, GoogleAuthError, OSError) as error:
        raise CloudError(FailureKind.UNKNOWN, str(error)) from error
