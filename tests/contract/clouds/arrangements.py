"""One arrangement for each cloud: the adapter under test, and hands on what is behind it."""

import asyncio
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from azure.core.credentials import AccessToken
from google.auth.credentials import AnonymousCredentials
from moto.server import ThreadedMotoServer

from gpuloom.catalog import load_catalog
from gpuloom.model.policies import CapacityType
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.sim.cloud.client import CloudClient
from gpuloom.sim.cloud.offerings import default_offerings
from gpuloom.sim.cloud.server import CloudServer
from gpuloom.sim.cloud.state import CloudState
from services.autoscaler.clouds.aws import AwsCloud, AwsSettings
from services.autoscaler.clouds.azure import AzureCloud, AzureSettings
from services.autoscaler.clouds.gcp import GcpCloud, GcpSettings
from services.autoscaler.clouds.simulated import SimulatedCloud
from services.autoscaler.core.lifecycle.machines import Order
from services.autoscaler.ports import Cloud
from tests.contract.clouds import azure_emulator, gcp_emulator
from tests.contract.clouds.emulator import served
from tests.unit.kube.certificates import a_certificate, an_authority

POOL = "spot-pool"
CLOCK = SystemClock()


@dataclass
class Arrangement:
    cloud: Cloud
    settle: Callable[[], None]
    group: str
    instance_type: str
    zone: str | None
    hands: Any
    """What is behind the cloud, for tests of one cloud."""

    def order(self, token: str, size: int) -> Order:
        return Order(token, POOL, self.instance_type, CapacityType.SPOT, self.zone, self.group, size)


@asynccontextmanager
async def simulated(directory: Path) -> AsyncIterator[Arrangement]:
    clock = FakeClock()
    state = CloudState(default_offerings(load_catalog()))
    async with CloudServer(state, clock) as server, CloudClient(server.url, CLOCK) as client:

        def settle() -> None:
            state.advance(clock.now().timestamp() + 1000)

        yield Arrangement(SimulatedCloud(client), settle, "", "p3.2xlarge", "zone-b", server)


ASG = "gpu-spot-asg"
_AWS = {"region_name": "us-west-2", "aws_access_key_id": "test", "aws_secret_access_key": "test"}


@asynccontextmanager
async def aws(directory: Path) -> AsyncIterator[Arrangement]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        cloud = await asyncio.to_thread(_aws_cloud, url)
        yield Arrangement(cloud, lambda: None, ASG, "p3.2xlarge", None, url)
        cloud.close()
    finally:
        server.stop()


def _aws_cloud(url: str) -> AwsCloud:
    # What moto keeps, it keeps for the process.
    reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")  # noqa: S310 - loopback
    urllib.request.urlopen(reset).close()  # noqa: S310
    ec2: Any = boto3.client("ec2", endpoint_url=url, **_AWS)
    data = {"ImageId": "ami-12c6146b", "InstanceType": "p3.2xlarge"}
    ec2.create_launch_template(LaunchTemplateName="gpu-spot-template", LaunchTemplateData=data)
    scaling: Any = boto3.client("autoscaling", endpoint_url=url, **_AWS)
    template = {"LaunchTemplateName": "gpu-spot-template", "Version": "$Latest"}
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=ASG,
        MixedInstancesPolicy={
            "LaunchTemplate": {
                "LaunchTemplateSpecification": template,
                "Overrides": [{"InstanceType": "p3.2xlarge"}],
            },
            "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 0},
        },
        MinSize=0,
        MaxSize=5,
        DesiredCapacity=0,
        AvailabilityZones=["us-west-2a", "us-west-2b"],
    )
    return AwsCloud(AwsSettings("us-west-2", {POOL: ASG}, url), CLOCK)


@asynccontextmanager
async def gcp(directory: Path) -> AsyncIterator[Arrangement]:
    emulator = gcp_emulator.GcpEmulator()
    with served(emulator) as port:
        settings = GcpSettings(
            gcp_emulator.PROJECT,
            gcp_emulator.REGION,
            {POOL: gcp_emulator.GROUP},
            f"http://127.0.0.1:{port}",
            AnonymousCredentials(),  # type: ignore[no-untyped-call]
        )
        cloud = GcpCloud(settings, CLOCK)
        yield Arrangement(cloud, emulator.settle, gcp_emulator.GROUP, "a2-highgpu-1g", None, emulator)
        cloud.close()


class _Credential:
    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("a token", 2_000_000_000)


@asynccontextmanager
async def azure(directory: Path) -> AsyncIterator[Arrangement]:
    emulator = azure_emulator.AzureEmulator()
    authority = an_authority()
    certificate, key = a_certificate(authority, "localhost")
    files = {"ca.pem": authority.pem, "cert.pem": certificate, "key.pem": key}
    for name, text in files.items():
        (directory / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    with served(emulator, tls) as port:
        emulator.port = port
        options = {
            "base_url": f"https://localhost:{port}",
            "connection_verify": str(directory / "ca.pem"),
            "polling_interval": 0,
            "retry_backoff_factor": 0,
        }
        settings = AzureSettings(
            azure_emulator.SUBSCRIPTION,
            azure_emulator.RESOURCE_GROUP,
            {POOL: azure_emulator.SET},
            _Credential(),
            options,
        )
        cloud = AzureCloud(settings, CLOCK)
        yield Arrangement(
            cloud, emulator.settle, azure_emulator.SET, "Standard_NC24ads_A100_v4", None, emulator
        )
        cloud.close()


ARRANGEMENTS: dict[str, Callable[[Path], AbstractAsyncContextManager[Arrangement]]] = {
    "simulated": simulated,
    "aws": aws,
    "gcp": gcp,
    "azure": azure,
}
