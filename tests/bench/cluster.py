"""python -m tests.bench.cluster: how fast kube-scheduler is alone, beside do-nothing extenders, beside ours.

One real control plane; rounds of all variants take turns on it. See the README beside this file.
"""

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import key_of, uid_of
from gpuloom.kube.resources import NAMESPACES, NODES
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import NodeMode
from gpuloom.names import RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.runtime.clock import Clock, SystemClock
from gpuloom.sim.command import CommandParser, run_command
from gpuloom.sim.kubelet.status import node_object
from gpuloom.sim.machines.hardware import Hardware
from gpuloom.sim.machines.load import Faults
from gpuloom.sim.processes.ports import HOST
from tests.bench.api_writes import WriteCounters
from tests.bench.discovery import discovery_server
from tests.bench.launch import FIRST_SHORTLIST, Grounds
from tests.bench.processes import find_process
from tests.bench.profiles import render_profiles
from tests.bench.report import RunFacts, render, summarize, to_json
from tests.bench.rounds import RoundResult, Stage, for_each, run_round
from tests.bench.variants import Variant, interleaved, parse_variants
from tests.bench.workload import NAMESPACE, node_facts, plan_machines, plan_pods, refuse_crowding
from tests.cluster.binaries import find_binaries
from tests.cluster.control_plane import ControlPlane, open_control_plane
from tests.cluster.shared import account_of, apply_rights

MODES = (NodeMode.NVIDIA, NodeMode.GPULOOM)
WARM_UP_PODS = 50


class IncorrectError(GpuloomError):
    """Something was placed wrongly, or not at all; the table says what."""


@dataclass(frozen=True)
class BenchOptions:
    nodes: int
    pods: int
    rounds: int
    variants: tuple[Variant, ...]
    modes: tuple[NodeMode, ...]
    seed: int
    shortlist: int
    directory: Path
    output: Path | None
    profile: bool


def main() -> int:
    parser = CommandParser(prog="python -m tests.bench.cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000, help="in each burst")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", default=",".join(Variant), help="comma-separated; default: all")
    parser.add_argument("--modes", default=NodeMode.GPULOOM.value, help="nvidia, gpuloom, or both in turns")
    parser.add_argument("--seed", type=int, default=1, help="of the mix of pods")
    parser.add_argument(
        "--shortlist", type=int, default=FIRST_SHORTLIST, help="nodes that a filter answers at most"
    )
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    parser.add_argument("--dir", type=Path, default=Path(".cache/bench-cluster"), help="logs and state")
    parser.add_argument("--profile", action="store_true", help="show where our extender's time goes")
    return run_command("bench-cluster", lambda: _run(_options(parser.parse_args())))


def _options(arguments: argparse.Namespace) -> BenchOptions:
    """Raise InvalidRequestError for what can't be run."""
    if min(arguments.nodes, arguments.pods - 1, arguments.rounds, arguments.shortlist) < 1:
        raise InvalidRequestError("at least 1 node, 2 pods, 1 round and a shortlist of 1 are needed")
    modes = arguments.modes.split(",")
    if not set(modes) <= set(MODES) or len(set(modes)) < len(modes):
        raise InvalidRequestError(f"--modes is {' or '.join(MODES)} or both, not {arguments.modes!r}")
    return BenchOptions(
        nodes=arguments.nodes,
        pods=arguments.pods,
        rounds=arguments.rounds,
        variants=parse_variants(arguments.variants),
        modes=tuple(NodeMode(mode) for mode in modes),
        seed=arguments.seed,
        shortlist=arguments.shortlist,
        directory=arguments.dir.absolute(),
        output=arguments.output,
        profile=arguments.profile,
    )


async def _run(options: BenchOptions) -> None:
    clock = SystemClock()
    facts = _run_facts(options, clock)
    _say(facts.label())
    try:
        results = await _measure(options, clock)
    except asyncio.CancelledError:
        _say("interrupted: everything has ended, and there is nothing to report")
        raise
    summaries = summarize(results)
    sys.stdout.write("\n" + render(facts, summaries))
    profiles = sorted(options.directory.glob("rounds/*/extender.profile")) if options.profile else []
    sys.stdout.write(render_profiles(profiles))
    if options.output is not None:
        body = orjson.dumps(to_json(facts, results), option=orjson.OPT_INDENT_2)
        await asyncio.to_thread(options.output.write_bytes, body)
        _say(f"written: {options.output}")
    if any(summary.problems for summary in summaries):
        raise IncorrectError("not every round went as it must, see the problems above")


async def _measure(options: BenchOptions, clock: Clock) -> list[RoundResult]:
    results: list[RoundResult] = []
    async with _stage(options, clock) as stage:
        warm_up = replace(stage, pods=stage.pods[:WARM_UP_PODS])
        _say("warming up the control plane, not measured")
        await run_round(warm_up, Variant.BARE, 0)
        for number, variant in interleaved(options.variants, options.rounds):
            result = await run_round(stage, variant, number)
            results.append(result)
            rate = "failed" if result.pods_per_s is None else f"{result.pods_per_s:.1f} pods/s"
            wrong = f", {len(result.problems)} problems: {result.problems[0]}" if result.problems else ""
            _say(f"round {number}/{options.rounds} {variant}: {rate}, load {result.load_average:.1f}{wrong}")
    return results


@asynccontextmanager
async def _stage(options: BenchOptions, clock: Clock) -> AsyncIterator[Stage]:
    machines = plan_machines(options.nodes, options.modes)
    pods = plan_pods(options.pods, options.modes, options.seed)
    refuse_crowding(machines, pods)
    certificates, rounds = options.directory / "certificates", options.directory / "rounds"
    binaries = find_binaries(os.environ)
    async with (
        open_control_plane(binaries, options.directory / "control-plane", clock) as plane,
        plane.client() as client,
    ):
        # Only now is the directory ours alone.
        shutil.rmtree(rounds, ignore_errors=True)
        identities = issue_development_certificates(certificates, CertificateOrder(), clock)
        await apply_rights(plane)
        uids = await _create_nodes(client, machines, clock)
        nodes = {machine.spec.node: node_facts(machine, uids[machine.spec.node]) for machine in machines}
        async with discovery_server(tuple(nodes.values()), identities["discovery"], clock) as discovery:
            grounds = Grounds(
                directory=rounds,
                binaries=binaries,
                certificates=certificates,
                scheduler_kubeconfig=await plane.service_account_kubeconfig(*account_of("scheduler")),
                extender_kubeconfig=await plane.service_account_kubeconfig(*account_of("scheduler-extender")),
                discovery_address=f"{HOST}:{discovery.port}",
                clock=clock,
                shortlist=options.shortlist,
                profile=options.profile,
            )
            counters = WriteCounters(plane.admin_kubeconfig, clock)
            yield Stage(grounds, client, counters, nodes, pods, _control_plane_pids(plane))


async def _create_nodes(client: KubeClient, machines: Sequence[Hardware], clock: Clock) -> dict[str, str]:
    """Their UIDs by name."""
    _say(f"creating {len(machines)} nodes")
    await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})

    async def create(machine: Hardware) -> None:
        node = node_object(machine, Faults(), clock.now())
        for field in ("capacity", "allocatable"):
            node["status"][field] |= _offered(machine)
        await client.create(NODES, node)

    await for_each(machines, create)
    listing = await client.list(NODES)
    return {key_of(node)[1]: uid_of(node) for node in listing.items}


def _offered(machine: Hardware) -> dict[str, str]:
    """What discovery writes to a node whose GPUs GPULoom gives out."""
    if machine.spec.mode is not NodeMode.GPULOOM:
        return {}
    return {
        RESOURCE_GPU_MILLI: str(MILLI_PER_GPU * len(machine.gpus)),
        RESOURCE_GPU_MEMORY_MIB: str(machine.memory_mib),
    }


def _control_plane_pids(plane: ControlPlane) -> dict[str, int]:
    pids = {
        "kube-apiserver": plane.supervisor.pid("kube-apiserver"),
        "etcd": find_process(f"--data-dir={plane.directory / 'etcd'}"),
    }
    return {name: pid for name, pid in pids.items() if pid is not None}


def _run_facts(options: BenchOptions, clock: Clock) -> RunFacts:
    return RunFacts(
        nodes=options.nodes,
        modes=tuple(options.modes),
        pods=options.pods,
        rounds=options.rounds,
        seed=options.seed,
        shortlist=options.shortlist,
        cores=len(os.sched_getaffinity(0)),
        profiled=options.profile,
        started=clock.now().isoformat(timespec="seconds"),
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
