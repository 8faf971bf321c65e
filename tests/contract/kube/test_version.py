"""What an API server says of itself, by which newer features are chosen."""

from gpuloom.kube.client import KubeClient
from services.scheduler_extender.core.objects.admission_policies import version_of


async def test_a_server_says_its_version(client: KubeClient) -> None:
    assert (version_of(await client.version()) or (0, 0)) >= (1, 25)
