"""Ordinary pods on real nodes: they reach each other's Services by name, the API server, and host ports."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS, Resource
from gpuloom.runtime.clock import SystemClock
from tests.cluster.network.cluster import NetworkedCluster, open_networked_cluster
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.image import IMAGE
from tests.cluster.nodes.pods import NAMESPACE, wait_started

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
LINES = {"real-a": RuntimeLine.CONTAINERD_2, "real-b": RuntimeLine.CONTAINERD_1_7}
SERVICES = Resource("", "v1", "services", "Service")
PORT = 8080
HOST_PORT = 8081


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NetworkedCluster]:
    async with open_networked_cluster(tmp_path, LINES, CLOCK) as opened:
        yield opened


async def test_pods_reach_services_of_other_nodes_and_the_api_server_by_name(
    cluster: NetworkedCluster,
) -> None:
    """From pods of both nodes to the pods of both, so that every packet's way is tried."""
    node_a, node_b = cluster.nodes
    await cluster.client.create(SERVICES, _a_service("web-a"))
    await cluster.client.create(SERVICES, _a_service("web-b"))
    for name, node in (("web-a", node_a), ("web-b", node_b)):
        await cluster.client.create(PODS, _a_web_pod(name, node.name, cluster))
    web_a, web_b = [await wait_started(cluster.client, name, CLOCK) for name in ("web-a", "web-b")]
    await cluster.kubectl("wait", "--for=condition=Ready", "pod/web-a", "pod/web-b", "--timeout=60s")

    said = {
        (pod["metadata"]["name"], service): await cluster.node_of(pod).run_in_container(
            pod, "/assets/kubectl", *_GET, f"--server=http://{service}.{suffix}"
        )
        for pod in (web_a, web_b)
        for service, suffix in (("web-a", "default"), ("web-b", "default.svc.cluster.local"))
    }
    known_as = await node_a.run_in_container(web_a, "sh", "-c", _ASK_THE_API_SERVER)

    assert {pair: text.strip() for pair, text in said.items()} == {
        (pod, service): service for pod in ("web-a", "web-b") for service in ("web-a", "web-b")
    }
    assert "system:serviceaccount:default:default" in known_as
    # The same number on both nodes: each node has its own ports.
    for node, name in ((node_a, "web-a"), (node_b, "web-b")):
        client = (str(cluster.plane.binaries.path("kubectl")), *_GET)
        answer = await node_b.run_in(*client, f"--server=http://{node.address}:{HOST_PORT}")
        assert answer.strip() == name
    assert "web-b" in await cluster.kubectl("exec", "web-b", "--", "cat", "/tmp/index.html")


# Of kubectl: a static busybox can't resolve names, but programs of Go do it themselves.
_GET = ("get", "--raw=/index.html", "--request-timeout=5s")
_ASK_THE_API_SERVER = """
account=/var/run/secrets/kubernetes.io/serviceaccount
exec /assets/kubectl --server=https://kubernetes.default.svc --certificate-authority=$account/ca.crt \\
  --token="$(cat $account/token)" auth whoami
"""


def _a_service(name: str) -> JsonObject:
    spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT}]}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def _a_web_pod(name: str, node: str, cluster: NetworkedCluster) -> JsonObject:
    """It serves its own name; kubectl of this machine is mounted into it."""
    serve = f"echo {name} >/tmp/index.html && exec httpd -f -p {PORT} -h /tmp"
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", serve],
        "ports": [{"containerPort": PORT, "hostPort": HOST_PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "assets", "mountPath": "/assets", "readOnly": True}],
    }
    volume = {"name": "assets", "hostPath": {"path": str(cluster.plane.binaries.folder)}}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [volume],
        },
    }
