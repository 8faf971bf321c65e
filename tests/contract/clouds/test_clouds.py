"""One suite for every cloud: the same orders, the same outcome, whatever its API looks like."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpuloom.model.policies import CapacityType
from services.autoscaler.clouds.aws import AwsCloud, AwsSettings
from services.autoscaler.clouds.aws_reading import failures_of
from services.autoscaler.core.lifecycle.machines import FailureKind, Instance, InstanceState
from services.autoscaler.ports import CloudError
from tests.contract.clouds.arrangements import ARRANGEMENTS, CLOCK, POOL, Arrangement
from tests.contract.clouds.emulator import Machine


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture(params=sorted(ARRANGEMENTS))
async def arranged(
    request: pytest.FixtureRequest, tmp_path: Path, aws_keys: None
) -> AsyncIterator[Arrangement]:
    async with ARRANGEMENTS[request.param](tmp_path) as arrangement:
        yield arrangement


async def instances(arranged: Arrangement) -> list[Instance]:
    arranged.settle()
    view = await arranged.cloud.observe()
    return [one for one in view.instances if one.state is not InstanceState.ENDING]


async def test_an_order_brings_one_machine_that_tells_what_it_is(arranged: Arrangement) -> None:
    await arranged.cloud.request(arranged.order("claim-1", 1))

    (machine,) = await instances(arranged)

    assert machine.pool == POOL
    assert machine.group == arranged.group
    assert machine.instance_type == arranged.instance_type
    assert machine.capacity_type is CapacityType.SPOT
    assert machine.zone
    assert machine.instance_id.rsplit("/", 1)[-1] in machine.provider_id


async def test_a_repeated_order_buys_nothing_twice(arranged: Arrangement) -> None:
    for _ in range(3):
        await arranged.cloud.request(arranged.order("claim-1", 1))
    first = await instances(arranged)
    await arranged.cloud.request(arranged.order("claim-1", 1))

    assert await instances(arranged) == first
    assert len(first) == 1


async def test_a_late_order_of_a_smaller_size_takes_nothing_away(arranged: Arrangement) -> None:
    await arranged.cloud.request(arranged.order("claim-1", 1))
    await arranged.cloud.request(arranged.order("claim-2", 2))
    await arranged.cloud.request(arranged.order("claim-1", 1))

    assert len(await instances(arranged)) == 2


async def test_exactly_the_named_machine_ends_and_stays_away(arranged: Arrangement) -> None:
    await arranged.cloud.request(arranged.order("claim-1", 1))
    await arranged.cloud.request(arranged.order("claim-2", 2))
    stays, goes = await instances(arranged)

    await arranged.cloud.terminate(goes)
    await arranged.cloud.terminate(goes)
    left = await instances(arranged)
    await arranged.cloud.terminate(goes)

    assert [one.instance_id for one in left] == [stays.instance_id]
    assert [one.instance_id for one in await instances(arranged)] == [stays.instance_id]


async def test_what_is_cancelled_never_costs_a_machine_that_is_there(arranged: Arrangement) -> None:
    await arranged.cloud.request(arranged.order("claim-1", 1))
    await arranged.cloud.request(arranged.order("claim-2", 2))
    before = await instances(arranged)

    await arranged.cloud.cancel(arranged.group, 0)

    assert await instances(arranged) == before


async def refused(arranged: Arrangement, size: int = 1) -> CloudError:
    with pytest.raises(CloudError) as raised:
        await arranged.cloud.request(arranged.order("claim-1", size))
    return raised.value


async def test_a_simulated_refusal_keeps_its_class(tmp_path: Path) -> None:
    async with ARRANGEMENTS["simulated"](tmp_path) as arranged:
        for code, kind in (
            ("InsufficientInstanceCapacity", FailureKind.CAPACITY),
            ("InstanceLimitExceeded", FailureKind.QUOTA),
            ("RequestLimitExceeded", FailureKind.THROTTLED),
            ("InternalError", FailureKind.UNKNOWN),
        ):
            arranged.hands.faults.fail_next(code)
            assert (await refused(arranged)).kind is kind


async def test_a_lost_answer_is_unknown_and_the_next_order_finds_its_machine(tmp_path: Path) -> None:
    async with ARRANGEMENTS["simulated"](tmp_path) as arranged:
        arranged.hands.faults.lose_next_answers()

        assert (await refused(arranged)).kind is FailureKind.UNKNOWN
        machine = await arranged.cloud.request(arranged.order("claim-1", 1))

        assert [machine] == list((await arranged.cloud.observe()).instances)


async def test_gcp_tells_stockouts_by_machine_and_warns_of_the_groups_own_autoscaler(tmp_path: Path) -> None:
    async with ARRANGEMENTS["gcp"](tmp_path) as arranged:
        emulator = arranged.hands
        await arranged.cloud.request(arranged.order("claim-1", 1))
        emulator.machines, emulator.out_of_capacity = [Machine(7)], True
        emulator.autoscaler = "https://www.googleapis.com/an-autoscaler"

        view = await arranged.cloud.observe()

    assert [(one.kind, one.instance_id) for one in view.failures] == [
        (FailureKind.CAPACITY, f"{arranged.group}-7")
    ]
    assert "stop-autoscaling" in view.groups[0].notes[0]
    assert view.groups[0].zones == ("us-central1-a",)


async def test_gcp_reads_a_regional_template_and_goes_on_without_one_that_is_gone(tmp_path: Path) -> None:
    async with ARRANGEMENTS["gcp"](tmp_path) as arranged:
        emulator = arranged.hands
        emulator.template = "regions/us-central1/instanceTemplates/gpu-spot-template"
        emulator.templates = frozenset({emulator.template})
        (regional,) = (await arranged.cloud.observe()).groups
        emulator.template = "global/instanceTemplates/deleted"
        (without,) = (await arranged.cloud.observe()).groups

    assert regional.instance_types == ("a2-highgpu-1g",)
    assert regional.capacity_type is CapacityType.SPOT
    assert (without.instance_types, without.capacity_type) == ((), None)
    assert "instanceTypes" in without.notes[0]


async def test_gcp_finds_a_group_again_that_was_made_anew_in_another_zone(tmp_path: Path) -> None:
    async with ARRANGEMENTS["gcp"](tmp_path) as arranged:
        await arranged.cloud.observe()
        arranged.hands.zone = "us-central1-f"
        await arranged.cloud.request(arranged.order("claim-1", 1))

        (machine,) = await instances(arranged)

    assert machine.zone == "us-central1-f"


async def test_gcp_and_azure_refusals_keep_their_class(tmp_path: Path) -> None:
    quota = {"error": {"code": 403, "message": "Quota exceeded", "errors": [{"reason": "quotaExceeded"}]}}
    async with ARRANGEMENTS["gcp"](tmp_path) as arranged:
        arranged.hands.errors = [(403, quota)]
        assert (await refused(arranged)).kind is FailureKind.QUOTA
        arranged.hands.failed_operation = {"code": "QUOTA_EXCEEDED", "message": "GPUS_ALL_REGIONS"}
        assert (await refused(arranged, 2)).kind is FailureKind.QUOTA
    cores = {"error": {"code": "OperationNotAllowed", "message": "exceeding approved cores quota"}}
    gone = {"error": {"code": "AllocationFailed", "message": "no capacity"}}
    async with ARRANGEMENTS["azure"](tmp_path) as arranged:
        arranged.hands.errors = [(409, cores), (409, gone)]
        assert (await refused(arranged)).kind is FailureKind.QUOTA
        assert (await refused(arranged)).kind is FailureKind.CAPACITY


async def test_f23_aws_never_asks_beyond_the_groups_limit_and_tells_of_missing_protection(
    tmp_path: Path, aws_keys: None
) -> None:
    """AWS refuses that as a mistake of the caller, and moto grants it."""
    async with ARRANGEMENTS["aws"](tmp_path) as arranged:
        assert (await refused(arranged, 6)).kind is FailureKind.QUOTA
        assert not await instances(arranged)
        view = await arranged.cloud.observe()

    assert any("scale-in" in note for note in view.groups[0].notes)


async def test_a_group_that_is_not_there_is_a_mistake_of_the_settings(tmp_path: Path, aws_keys: None) -> None:
    async with ARRANGEMENTS["aws"](tmp_path) as arranged:
        cloud = AwsCloud(AwsSettings("us-west-2", {POOL: "gpu-spot-agd"}, arranged.hands), CLOCK)
        with pytest.raises(CloudError, match="gpu-spot-agd") as raised:
            await cloud.observe()

    assert raised.value.kind is FailureKind.CONFIGURATION


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
async def test_a_group_that_is_not_there_hides_its_own_pool_alone(
    tmp_path: Path, aws_keys: None, name: str
) -> None:
    async with ARRANGEMENTS[name](tmp_path) as arranged:
        cloud: Any = arranged.cloud
        cloud._settings = replace(cloud._settings, groups={"a-typo": "no-such-group", POOL: arranged.group})
        await cloud.request(arranged.order("claim-1", 1))

        (machine,) = await instances(arranged)
        view = await cloud.observe()

    assert machine.group == arranged.group
    assert [one.pool for one in view.groups] == [POOL]
    assert list(view.unread) == ["a-typo"]
    assert "no-such-group" in view.unread["a-typo"]


def test_aws_activities_tell_why_a_launch_failed() -> None:
    """F5, F7: moto shows no activities, so these are AWS's own words."""
    told = [
        ("We currently do not have sufficient p4d.24xlarge capacity in zones with support", "capacity"),
        ("Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill", "capacity"),
        ("Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot count", "quota"),
        ("You have requested more vCPU capacity than your current vCPU limit of 64 allows", "quota"),
        ("The image id '[ami-0]' does not exist. Launching EC2 instance failed.", "configuration"),
    ]
    activities = [
        {"StatusCode": "Failed", "Description": "Launching a new EC2 instance", "StatusMessage": text}
        for text, _ in told
    ]
    ending = {"StatusCode": "Failed", "Description": "Terminating EC2 instance: i-1", "StatusMessage": "no"}

    failures = failures_of([*activities, ending], "asg")

    assert [one.kind.value for one in failures] == [kind for _, kind in told]


async def test_aws_ends_a_machine_of_a_group_at_its_minimum_and_another_comes(
    tmp_path: Path, aws_keys: None
) -> None:
    """AWS refuses to make the group smaller than its minimum, and moto does it."""
    async with ARRANGEMENTS["aws"](tmp_path) as arranged:
        scaling: Any = boto3.client("autoscaling", endpoint_url=arranged.hands, region_name="us-west-2")
        scaling.update_auto_scaling_group(AutoScalingGroupName=arranged.group, MinSize=1, DesiredCapacity=1)
        (broken,) = await instances(arranged)

        await arranged.cloud.terminate(broken)

        (other,) = await instances(arranged)
        (group,) = (await arranged.cloud.observe()).groups
    assert other.instance_id != broken.instance_id
    assert (group.desired, group.min_size) == (1, 1)


async def test_aws_without_the_sixth_permission_goes_on_and_says_so(
    tmp_path: Path, aws_keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ARRANGEMENTS["aws"](tmp_path) as arranged:
        cloud = arranged.cloud
        assert isinstance(cloud, AwsCloud)

        def forbidden(**options: object) -> None:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "DescribeScalingActivities")

        monkeypatch.setattr(cloud._scaling, "describe_scaling_activities", forbidden)
        await cloud.request(arranged.order("claim-1", 1))
        view, again = await cloud.observe(), await cloud.observe()

    assert len(view.instances) == 1
    assert any("DescribeScalingActivities" in note for note in again.groups[0].notes)


FIVE_ACTIONS = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
}
SIXTH_ACTION = "autoscaling:DescribeScalingActivities"


async def test_aws_uses_exactly_the_five_printed_permissions_and_asks_once_for_a_sixth(
    tmp_path: Path, aws_keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that a machine goes through, with every other action refused as IAM does."""
    async with ARRANGEMENTS["aws"](tmp_path) as arranged:
        cloud = arranged.cloud
        assert isinstance(cloud, AwsCloud)
        called: list[str] = []

        def seen(model: Any, **rest: object) -> None:
            service = model.service_model.service_name
            action = f"{service}:{model.name}"
            called.append(action)
            if action not in FIVE_ACTIONS:
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": action}}, model.name)

        for client in (cloud._scaling, cloud._machines):
            client.meta.events.register("before-call", seen)

        await cloud.request(arranged.order("claim-1", 1))
        (machine,) = await instances(arranged)
        await cloud.offerings()
        await cloud.terminate(machine)
        await cloud.cancel(arranged.group, 0)
        assert not await instances(arranged)

    assert set(called) == FIVE_ACTIONS | {SIXTH_ACTION}
    assert called.count(SIXTH_ACTION) == 1


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 400, FailureKind.CAPACITY),
        ("MaxSpotInstanceCountExceeded", 400, FailureKind.QUOTA),
        ("VcpuLimitExceeded", 400, FailureKind.QUOTA),
        ("AccessDenied", 403, FailureKind.CONFIGURATION),
        ("ValidationError", 400, FailureKind.CONFIGURATION),
        ("Throttling", 400, FailureKind.THROTTLED),
        ("ScalingActivityInProgress", 400, FailureKind.THROTTLED),
        ("SomethingNew", 503, FailureKind.UNKNOWN),
    ],
)
async def test_aws_refusals_keep_their_class(
    tmp_path: Path, aws_keys: None, code: str, status: int, kind: FailureKind
) -> None:
    """By stubs: moto does not refuse."""
    async with ARRANGEMENTS["aws"](tmp_path) as arranged:
        cloud = arranged.cloud
        assert isinstance(cloud, AwsCloud)

        def refuse(**rest: object) -> None:
            answer = {
                "Error": {"Code": code, "Message": "no"},
                "ResponseMetadata": {"HTTPStatusCode": status},
            }
            raise ClientError(answer, "SetDesiredCapacity")

        cloud._scaling.meta.events.register("before-call.auto-scaling.SetDesiredCapacity", refuse)

        assert (await refused(arranged)).kind is kind


async def test_gcp_and_azure_throttling_faults_and_mistakes_keep_their_class(tmp_path: Path) -> None:
    rate = {"error": {"code": 403, "message": "slow down", "errors": [{"reason": "rateLimitExceeded"}]}}
    wrong = {"error": {"code": 400, "message": "no such field"}}
    async with ARRANGEMENTS["gcp"](tmp_path) as arranged:
        arranged.hands.errors = [(403, rate), (400, wrong), (503, {"error": {"code": 503, "message": "x"}})]
        kinds = [(await refused(arranged)).kind for _ in range(3)]
        assert kinds == [FailureKind.THROTTLED, FailureKind.CONFIGURATION, FailureKind.UNKNOWN]
    denied = {"error": {"code": "AuthorizationFailed", "message": "no permission"}}
    async with ARRANGEMENTS["azure"](tmp_path) as arranged:
        arranged.hands.errors = [(403, denied)]
        assert (await refused(arranged)).kind is FailureKind.CONFIGURATION


async def test_f23_machines_end_by_their_id_and_their_place_with_them(arranged: Arrangement) -> None:
    """A group never chooses which machine goes, and wants none in its place."""
    for number in (1, 2, 3):
        await arranged.cloud.request(arranged.order(f"claim-{number}", number))
    before = {one.instance_id for one in await instances(arranged)}
    goes = sorted(await instances(arranged), key=lambda one: one.instance_id)[1]

    await arranged.cloud.terminate(goes)
    await instances(arranged)
    await arranged.cloud.cancel(arranged.group, 2)

    assert {one.instance_id for one in await instances(arranged)} == before - {goes.instance_id}
    view = await arranged.cloud.observe()
    assert all(group.desired == 2 for group in view.groups)


async def test_what_the_cloud_chose_is_told_as_it_came(arranged: Arrangement) -> None:
    """Where an order names no zone, the machine's own is told, and it is adopted as it is."""
    await arranged.cloud.request(arranged.order("claim-1", 1))
    (machine,) = await instances(arranged)
    view = await arranged.cloud.observe()

    assert machine.zone
    for group in view.groups:
        assert machine.instance_type in group.instance_types
        assert machine.group == group.name
