"""The programs that make a node, and what a test does when this machine can't run nodes.

Kubelet and containerd 2.x are built from Go and found where the control plane's programs are; the rest comes
from Debian's packages.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pytest

from gpuloom.errors import NotFoundError, UnavailableError
from tests.cluster.assets.build import CONTAINERD, DEVICE_PLUGIN, NETWORK, cache_folder
from tests.cluster.binaries import REQUIRE_REAL, Binaries
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.packages import fetch_containerd, fetch_network, fetch_tools


@dataclass(frozen=True)
class NetworkPrograms:
    """`plugins` is the folder of CNI's plugins, `iptables` the one of iptables."""

    kube_proxy: Path
    coredns: Path
    plugins: Path
    iptables: Path


@dataclass(frozen=True)
class NodePrograms:
    """`containerd` is the folder of containerd, its shim and ctr; `tools` the one of runc and busybox.

    `network` is for nodes whose pods have a network of their own.
    """

    kubelet: Path
    containerd: Path
    tools: Path
    network: NetworkPrograms | None = None

    @property
    def search_path(self) -> str:
        """Containerd looks for its shim here, the shim for runc, and network plugins for iptables."""
        own = [self.containerd, self.tools, *([self.network.iptables] if self.network else [])]
        return f"{':'.join(map(str, own))}:{os.environ.get('PATH', '')}"


async def find_programs(binaries: Binaries, runtime: RuntimeLine, environ: Mapping[str, str]) -> NodePrograms:
    """Raise NotFoundError if a program can't be had, UnavailableError if this machine can't run nodes."""
    check_machine()
    kubelet = binaries.path("kubelet")
    cache = cache_folder(environ).parents[1] / "node-packages"
    tools = await asyncio.to_thread(fetch_tools, cache)
    if runtime is RuntimeLine.CONTAINERD_1_7:
        return NodePrograms(kubelet, await asyncio.to_thread(fetch_containerd, cache), tools)
    for name in CONTAINERD:
        binaries.path(name)
    return NodePrograms(kubelet, binaries.folder, tools)


async def find_network_programs(binaries: Binaries, environ: Mapping[str, str]) -> NetworkPrograms:
    """Raise NotFoundError if a program can't be had."""
    kube_proxy, coredns = (binaries.path(name) for name in NETWORK)
    packages = await asyncio.to_thread(fetch_network, cache_folder(environ).parents[1] / "node-packages")
    return NetworkPrograms(kube_proxy, coredns, packages / "cni", packages / "bin")


def check_machine() -> None:
    """Raise UnavailableError if this process can't run nodes here, whatever programs there are."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UnavailableError("a real node needs Linux and root")


async def require_programs(
    binaries: Binaries, runtime: RuntimeLine, environ: Mapping[str, str] = os.environ
) -> NodePrograms:
    """For fixtures: without the programs the test is skipped, or fails where the node tests must run."""
    try:
        return await find_programs(binaries, runtime, environ)
    except (NotFoundError, UnavailableError) as error:
        _did_not_run(f"with {runtime}: {error}", environ)


async def require_network_programs(
    binaries: Binaries, runtime: RuntimeLine, environ: Mapping[str, str] = os.environ
) -> NodePrograms:
    """As require_programs, with those for a network of pods."""
    programs = await require_programs(binaries, runtime, environ)
    try:
        return replace(programs, network=await find_network_programs(binaries, environ))
    except NotFoundError as error:
        _did_not_run(f"with a network of pods: {error}", environ)


def require_device_plugin(binaries: Binaries, environ: Mapping[str, str] = os.environ) -> Path:
    """As require_programs, for NVIDIA's device plugin."""
    try:
        return binaries.path(DEVICE_PLUGIN)
    except NotFoundError as error:
        _did_not_run(str(error), environ)


def require_machine(environ: Mapping[str, str] = os.environ) -> None:
    """As require_programs, for tests that need only what the kernel gives."""
    try:
        check_machine()
    except UnavailableError as error:
        _did_not_run(str(error), environ)


def _did_not_run(why: str, environ: Mapping[str, str]) -> NoReturn:
    reason = f"THE TESTS ON REAL NODES DID NOT RUN: {why}"
    if environ.get(REQUIRE_REAL) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
