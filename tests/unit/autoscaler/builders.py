"""Pods, offerings and nodes for tests of the autoscaler's core."""

from datetime import UTC, datetime
from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.codec.pod import pod_ref, pod_request
from gpuloom.codec.scheduling import schedulable_pod
from gpuloom.model.policies import CapacityType
from gpuloom.placement.template import NodeTemplate, expected_node
from services.autoscaler.core.buying.offerings import Offering, OfferingKey
from services.autoscaler.core.buying.pending import PendingPod, Worth
from services.autoscaler.core.buying.simulation import SimulatedNode

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
CATALOG = load_catalog()
USD = 1_000_000_000


def pod_json(
    name: str,
    *,
    milli: int = 1000,
    cpu: str = "1",
    memory: str = "1Gi",
    spec: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    limits = {"gpuloom.dev/gpu-milli": str(milli), "cpu": cpu, "memory": memory}
    container = {"name": "main", "image": "train", "resources": {"limits": limits, "requests": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", **(metadata or {})},
        "spec": {"containers": [container], **(spec or {})},
        "status": {"phase": "Pending"},
    }


def a_pod(
    name: str, *, worth: Worth = Worth.FLEXIBLE, gang: tuple[str, int] = ("", 0), **options: Any
) -> PendingPod:
    raw = pod_json(name, **options)
    request = pod_request(raw)
    assert request is not None
    return PendingPod(pod_ref(raw), request, schedulable_pod(raw), NOW, worth, *gang)


def an_offering(
    instance_type: str,
    usd: float,
    *,
    tier: CapacityType = CapacityType.ON_DEMAND,
    zone: str = "zone-a",
    pool: str = "pool",
    priority: int = 0,
    provider: str = "aws",
) -> Offering:
    return Offering(
        pool,
        OfferingKey(instance_type, zone, tier),
        CATALOG.instance(provider, instance_type),
        int(usd * USD),
        priority,
    )


def a_node(name: str, instance_type: str, labels: dict[str, str] | None = None) -> SimulatedNode:
    """A node that is there and empty."""
    template = NodeTemplate(CATALOG.instance("aws", instance_type), labels=labels or {})
    made = expected_node(template, name)
    return SimulatedNode(made.view, made.node, made.use)
