"""AWS Auto Scaling groups, one for each pool.

Works with five permissions: DescribeAutoScalingGroups, SetDesiredCapacity,
TerminateInstanceInAutoScalingGroup, DescribeInstances and DescribeSpotPriceHistory. With
DescribeScalingActivities too it hears at once why a launch failed; without, a claim that waits too long says
so. SetDesiredCapacity takes no token: an order's absolute size, derived from claims, takes its place, and a
size is never lowered by an order.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gpuloom.model.money import nano_usd
from gpuloom.model.policies import CapacityType, CloudProvider
from gpuloom.runtime.clock import Clock
from services.autoscaler.clouds.aws_reading import (
    error_kind,
    failures_of,
    group_of,
    instance_of,
    is_missing_instance,
    is_not_allowed,
)
from services.autoscaler.clouds.groups import read_groups
from services.autoscaler.clouds.threads import Threads
from services.autoscaler.core.lifecycle.machines import (
    CloudView,
    FailureKind,
    Group,
    Instance,
    InstanceState,
    LaunchFailure,
    Order,
    PricedOffering,
)
from services.autoscaler.ports import CloudError

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_CALLS = Config(connect_timeout=5, read_timeout=15, retries={"mode": "standard", "max_attempts": 3})
_ACTIVITIES = "autoscaling:DescribeScalingActivities"
_BATCH = 100


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """`groups`: Auto Scaling group by pool. `endpoint_url` None: AWS itself."""

    region: str
    groups: Mapping[str, str]
    endpoint_url: str | None = None


class AwsCloud:
    """Credentials come from the environment, the web identity of the pod (IRSA), or a mounted Secret."""

    provider = CloudProvider.AWS

    def __init__(self, settings: AwsSettings, clock: Clock) -> None:
        self._settings = settings
        self._threads = Threads("aws", clock)
        session = boto3.session.Session(region_name=settings.region)
        options: dict[str, Any] = {"config": _CALLS, "endpoint_url": settings.endpoint_url}
        self._scaling: Any = session.client("autoscaling", **options)
        self._machines: Any = session.client("ec2", **options)
        self._may_read_activities = True

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
        return await self._call(self._spot_prices)

    def close(self) -> None:
        self._threads.close()

    async def _call(self, call: Callable[[], Result]) -> Result:
        def translated() -> Result:
            try:
                return call()
            except ClientError as error:
                raise CloudError(error_kind(error), str(error)) from error
            except BotoCoreError as error:
                raise CloudError(FailureKind.UNKNOWN, str(error)) from error

        return await self._threads.run(translated)

    def _observe(self) -> CloudView:
        pools = {self._pool_of(name): name for name in self._settings.groups.values()}
        described = self._described(pools.values())
        ids = [one["InstanceId"] for group in described.values() for one in group["Instances"]]
        details = self._details(ids)

        def read(pool: str, name: str) -> CloudView:
            group = self._found(described, name)
            instances = (
                instance_of(one, details.get(one["InstanceId"], {}), group, pool)
                for one in group["Instances"]
                if one["LifecycleState"] not in {"Terminated", "Detached"}
            )
            # Before the notes, which tell whether it worked.
            failures = tuple(self._failures(name))
            groups = (group_of(group, pool, self._notes()),)
            return CloudView(self.provider, tuple(instances), groups, failures)

        return read_groups(self.provider, pools, read)

    def _described(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By name; one that is not there is missing."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        pages = self._scaling.get_paginator("describe_auto_scaling_groups")
        return {
            group["AutoScalingGroupName"]: group
            for page in pages.paginate(AutoScalingGroupNames=wanted)
            for group in page["AutoScalingGroups"]
        }

    def _found(self, described: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
        if name not in described:
            text = f"there is no Auto Scaling group {name} in {self._settings.region}"
            raise CloudError(FailureKind.CONFIGURATION, text)
        return described[name]

    def _describe(self, name: str) -> dict[str, Any]:
        return self._found(self._described([name]), name)

    def _details(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """By instance id; one that has just ended may be missing."""
        details: dict[str, dict[str, Any]] = {}
        pages = self._machines.get_paginator("describe_instances")
        for start in range(0, len(ids), _BATCH):
            # By filter, because an id that is gone would make the whole call fail.
            wanted = [{"Name": "instance-id", "Values": ids[start : start + _BATCH]}]
            for page in pages.paginate(Filters=wanted):
                for reservation in page["Reservations"]:
                    details |= {one["InstanceId"]: one for one in reservation["Instances"]}
        return details

    def _failures(self, group: str) -> list[LaunchFailure]:
        if not self._may_read_activities:
            return []
        try:
            answer = self._scaling.describe_scaling_activities(AutoScalingGroupName=group, MaxRecords=20)
        except ClientError as error:
            if not is_not_allowed(error):
                raise
            self._may_read_activities = False
            _log.info("scaling activities can't be read", extra={"missing_permission": _ACTIVITIES})
            return []
        return failures_of(answer["Activities"], group)

    def _notes(self) -> tuple[str, ...]:
        if self._may_read_activities:
            return ()
        return (f"without {_ACTIVITIES} a failed launch shows only after the launch timeout",)

    def _raise_size(self, name: str, size: int) -> None:
        group = self._group(name)
        # AWS refuses a size beyond the limit with an error that looks like a mistake of ours.
        if size > group.max_size:
            text = f"Auto Scaling group {name} may have {group.max_size} instances at most"
            raise CloudError(FailureKind.QUOTA, text)
        if size > group.desired:
            self._scaling.set_desired_capacity(
                AutoScalingGroupName=name, DesiredCapacity=size, HonorCooldown=False
            )

    def _lower_size(self, name: str, size: int) -> None:
        found = self._describe(name)
        live = [one for one in found["Instances"] if one["LifecycleState"] not in {"Terminated", "Detached"}]
        # Read again right before: a machine that has come meanwhile must not be the one that goes.
        least = max(size, len(live), found["MinSize"])
        if least < found["DesiredCapacity"]:
            self._scaling.set_desired_capacity(
                AutoScalingGroupName=name, DesiredCapacity=least, HonorCooldown=False
            )

    def _terminate(self, instance: Instance) -> None:
        group = self._describe(instance.group)
        now = next((one for one in group["Instances"] if _is(one, instance)), None)
        # A second call for one that is ending would lower the size a second time.
        if now is None or now["LifecycleState"].startswith("Terminat"):
            return
        try:
            self._scaling.terminate_instance_in_auto_scaling_group(
                InstanceId=instance.instance_id,
                # At its minimum the group refuses to become smaller: another comes, and is adopted.
                ShouldDecrementDesiredCapacity=group["DesiredCapacity"] > group["MinSize"],
            )
        except ClientError as error:
            if not is_missing_instance(error):
                raise

    def _group(self, name: str) -> Group:
        return group_of(self._describe(name), self._pool_of(name), ())

    def _spot_prices(self) -> list[PricedOffering]:
        """The newest price of every type in every zone that a group may bring."""
        types = sorted({kind for group in self._observe().groups for kind in group.instance_types})
        if not types:
            return []
        pages = self._machines.get_paginator("describe_spot_price_history")
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        for page in pages.paginate(
            InstanceTypes=types, ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]
        ):
            for row in page["SpotPriceHistory"]:
                key = (row["InstanceType"], row["AvailabilityZone"])
                if key not in newest or row["Timestamp"] > newest[key]["Timestamp"]:
                    newest[key] = row
        return [
            PricedOffering(kind, zone, CapacityType.SPOT, nano_usd(row["SpotPrice"]))
            for (kind, zone), row in sorted(newest.items())
        ]

    def _pool_of(self, group: str) -> str:
        return next(pool for pool, name in sorted(self._settings.groups.items()) if name == group)


def _is(found: Mapping[str, Any], instance: Instance) -> bool:
    return bool(found["InstanceId"] == instance.instance_id and instance.state is not InstanceState.ENDING)
