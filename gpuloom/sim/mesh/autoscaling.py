"""The policy of a simulated cluster: small machines of a simulated cloud, bought and given back quickly."""

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import AUTOSCALING_POLICIES
from gpuloom.runtime.clock import Clock

POLICY = "simulated"


def simulated_policy(nodes: int) -> JsonObject:
    """A few nodes beside those that are there, so that somebody who watches sees them come and go."""
    return {
        "metadata": {"name": POLICY},
        "spec": {
            "enabled": True,
            "provider": "simulated",
            "pendingPodTimeoutSeconds": 10,
            "scaleUpCooldownSeconds": 10,
            "scaleDownCooldownSeconds": 10,
            "maxNodes": max(2, nodes // 3),
            "nodePools": [
                {
                    "name": "cloud",
                    "instanceTypes": ["g5.xlarge", "g5.12xlarge", "g6.12xlarge", "p4d.24xlarge"],
                    "labels": {"gpu-autoscaler.io/workload": "burst"},
                }
            ],
        },
    }


async def apply_policy(url: str, nodes: int, clock: Clock) -> None:
    """Raise a GpuloomError if the simulated API does not take it."""
    async with KubeClient(KubeAccess(url), clock) as client:
        await client.create(AUTOSCALING_POLICIES, simulated_policy(nodes))
