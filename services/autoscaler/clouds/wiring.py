"""The clouds that the settings name. SDKs are imported for those alone: each costs tens of MiB."""

from gpuloom.model.policies import CloudProvider
from gpuloom.runtime.app import App
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.ports import Cloud


async def open_clouds(app: App, config: AutoscalerConfig) -> dict[CloudProvider, Cloud]:
    clouds: dict[CloudProvider, Cloud] = {}
    given = config.clouds
    if given.simulated_url is not None:
        from gpuloom.sim.cloud.client import CloudClient  # noqa: PLC0415
        from services.autoscaler.clouds.simulated import SimulatedCloud  # noqa: PLC0415

        client = await app.enter(CloudClient(given.simulated_url, app.clock))
        clouds[CloudProvider.SIMULATED] = SimulatedCloud(client, config.node_mode)
    if given.aws_region is not None:
        from services.autoscaler.clouds.aws import AwsCloud, AwsSettings  # noqa: PLC0415

        settings = AwsSettings(given.aws_region, dict(given.aws_groups), given.aws_endpoint)
        clouds[CloudProvider.AWS] = AwsCloud(settings, app.clock)
    if given.gcp_project is not None:
        from services.autoscaler.clouds.gcp import GcpCloud, GcpSettings  # noqa: PLC0415

        of_gcp = GcpSettings(given.gcp_project, given.gcp_region, dict(given.gcp_groups))
        clouds[CloudProvider.GCP] = GcpCloud(of_gcp, app.clock)
    if given.azure_subscription is not None:
        from services.autoscaler.clouds.azure import AzureCloud, AzureSettings  # noqa: PLC0415

        of_azure = AzureSettings(
            given.azure_subscription, given.azure_resource_group, dict(given.azure_groups)
        )
        clouds[CloudProvider.AZURE] = AzureCloud(of_azure, app.clock)
    return clouds
