"""What an API server says of itself, by which newer features are chosen."""

from gpuloom.kube.client import KubeClient
from services.scheduler_extender.adapters.http2 import offers_http2, version_of
from services.scheduler_extender.config import Http2


async def test_a_server_says_its_version(client: KubeClient) -> None:
    assert (version_of(await client.version()) or (0, 0)) >= (1, 25)


async def test_http2_is_offered_beside_a_server_that_is_new_enough(client: KubeClient) -> None:
    assert await offers_http2(Http2.AUTO, client, timeout_s=5.0)
