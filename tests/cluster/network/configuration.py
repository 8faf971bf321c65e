"""The configuration of a node's pod network and of its kube-proxy. Pure: values in, text out."""

import json
from pathlib import Path

import yaml

from tests.cluster.network.addresses import NodeAddresses

PROXY_HEALTH_PORT = 10256


def pod_network_configuration(node: NodeAddresses) -> str:
    """A bridge with the node's range, and host ports."""
    plugins = [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": node.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


def kube_proxy_configuration(name: str, node: NodeAddresses, cluster_range: str, kubeconfig: Path) -> str:
    # Nulls and zeros leave the machine's table of connections as it is.
    untouched = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": name,
        "clusterCIDR": cluster_range,
        "mode": "iptables",
        "iptables": {"minSyncPeriod": "100ms"},
        "healthzBindAddress": f"{node.address}:{PROXY_HEALTH_PORT}",
        "conntrack": untouched,
    }
    return yaml.safe_dump(document, sort_keys=False)
