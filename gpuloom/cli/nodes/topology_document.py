"""Nodes, their GPUs and the links between them for a program. Pure: facts in, JSON values out.

What is not known is null; a pair of GPUs is named by their indexes.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from gpuloom.cli.nodes.node_rows import allocated_milli
from gpuloom.model.gpu import Gpu
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.topology import PcieLevel, Topology


def topology_document(nodes: Iterable[NodeFacts]) -> dict[str, Any]:
    return {"nodes": [_node(facts) for facts in sorted(nodes, key=lambda facts: facts.state.node_name)]}


def _node(facts: NodeFacts) -> dict[str, Any]:
    state = facts.state
    allocated = allocated_milli(facts)
    return {
        "node": state.node_name,
        "mode": state.mode.value,
        "trusted": facts.trusted,
        "untrusted_reasons": list(facts.untrusted_reasons),
        "closed_gpus": {closed.gpu_uuid: closed.reason for closed in facts.closed_gpus},
        "nvswitch": None if state.topology is None else state.topology.nvswitch,
        "gpus": [_gpu(gpu, allocated.get(gpu.uuid, 0)) for gpu in state.gpus],
        "links": None if state.topology is None else _links(state.topology),
    }


def _gpu(gpu: Gpu, milli: int) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "numa_node": gpu.numa_node,
        "health": gpu.health.value,
        "health_reason": gpu.health_reason,
        "allocated_milli": milli,
        "mig_enabled": gpu.mig_enabled,
        "mig_instances": [
            {
                "profile": instance.placement.profile,
                "start": instance.placement.start,
                "slices": instance.slices,
                "memory_mib": instance.memory_mib,
                "fault": instance.fault,
            }
            for instance in gpu.mig_instances
        ],
    }


def _links(topology: Topology) -> list[dict[str, Any]]:
    return [
        {"gpus": [a, b], "nvlinks": topology.nvlink_count(a, b), "pcie": _level(topology.pcie_level(a, b))}
        for a, b in combinations(range(topology.gpu_count), 2)
    ]


def _level(level: PcieLevel) -> str | None:
    return None if level is PcieLevel.UNKNOWN else level.name
