"""The configuration files of a node's containerd and kubelet. Pure: values in, text out.

Paths are those inside the node's mount namespace; `home` is the node's folder, at the same path in both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.network.addresses import CLUSTER_DOMAIN
from tests.cluster.nodes.image import PAUSE_IMAGE

HOST = "127.0.0.1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

# What a kubelet sets on the machine it runs on. The node shows it these values as already set, so that it
# leaves the machine alone, whose reaction to a kernel panic is not a test's to change.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


class RuntimeLine(StrEnum):
    """A release line of containerd that nodes run on."""

    CONTAINERD_1_7 = "containerd-1.7"
    CONTAINERD_2 = "containerd-2"


@dataclass(frozen=True)
class NodePorts:
    kubelet: int
    kubelet_health: int


@dataclass(frozen=True)
class KubeletSettings:
    """`dns`: whom pods ask for names; empty: nobody."""

    ports: NodePorts
    authority_file: Path
    cgroup_root: str
    address: str = HOST
    dns: str = ""


# Copies, no overlay: works on any file system, and the image of most tests is small.
SMALL_IMAGES = "native"
LARGE_IMAGES = "overlayfs"


def containerd_configuration(runtime: RuntimeLine, home: Path, snapshotter: str = SMALL_IMAGES) -> str:
    """In the format that the line itself writes: version 2 for 1.7, version 3 for 2.x."""
    runc = {"runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2"}}}
    plugin_folder, network = f"{home}/cni/bin", {"conf_dir": f"{home}/cni/conf"}
    own = {"enable_cdi": True, "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"], "restrict_oom_score_adj": True}
    if runtime is RuntimeLine.CONTAINERD_1_7:
        cri: dict[str, Any] = {
            "io.containerd.grpc.v1.cri": {
                "sandbox_image": PAUSE_IMAGE,
                **own,
                "cni": {**network, "bin_dir": plugin_folder},
                "containerd": {"snapshotter": snapshotter, **runc},
            }
        }
    else:
        cri = {
            "io.containerd.cri.v1.images": {
                "snapshotter": snapshotter,
                "pinned_images": {"sandbox": PAUSE_IMAGE},
            },
            "io.containerd.cri.v1.runtime": {
                **own,
                "cni": {**network, "bin_dirs": [plugin_folder]},
                "containerd": runc,
            },
        }
    plugins = {
        **cri,
        "io.containerd.nri.v1.nri": {
            "disable": False,
            "disable_connections": False,
            "socket_path": "/var/run/nri/nri.sock",
            "plugin_path": f"{home}/nri-plugins",
            "plugin_config_path": f"{home}/nri-conf",
        },
    }
    document = {
        "version": 2 if runtime is RuntimeLine.CONTAINERD_1_7 else 3,
        "root": f"{home}/root",
        "state": "/run/containerd/state",
        # It would make folders under /opt of the machine.
        "disabled_plugins": ["io.containerd.internal.v1.opt"],
        "grpc": {"address": CONTAINERD_SOCKET},
        "plugins": plugins,
    }
    return to_toml(document)


def network_configuration() -> str:
    """Enough to make the node Ready: pods of these nodes live in the machine's own network."""
    return json.dumps({"cniVersion": "0.4.0", "name": "loopback", "plugins": [{"type": "loopback"}]})


def kubelet_configuration(settings: KubeletSettings, home: Path) -> str:
    names = {"clusterDNS": [settings.dns], "clusterDomain": CLUSTER_DOMAIN} if settings.dns else {}
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.address,
        "port": settings.ports.kubelet,
        "healthzBindAddress": settings.address,
        "healthzPort": settings.ports.kubelet_health,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.authority_file)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": settings.cgroup_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "podLogsDir": f"{home}/log/pods",
        "volumePluginDir": f"{home}/volume-plugins",
        "resolvConf": "",
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # A machine that is short of disk or memory because it runs tests must not lose their pods.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "2s",
        **names,
    }
    return yaml.safe_dump(document, sort_keys=False)


def to_toml(document: Mapping[str, Any]) -> str:
    """Tables of plain values, lists and tables; no more than containerd's file needs."""
    return "".join(f"{line}\n" for line in _table((), document))


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path else []
    # JSON's strings, numbers, booleans and lists of them are TOML's as well.
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _table((*path, key), value)
    return lines
