"""Puts usage windows together for one agent."""

from dataclasses import dataclass
from pathlib import Path

from gpuloom.runtime.app import App
from services.node_agent.node import Node
from services.node_agent.usage.config import UsageConfig
from services.node_agent.usage.core.integrator import Integrator
from services.node_agent.usage.metrics import UsageMetrics
from services.node_agent.usage.recorder import GivenOf, Recorder
from services.node_agent.usage.spools import SpoolBounds, Spools

FOLDER = "usage"

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_MIB = 1024 * 1024
_MEMORY_BYTES = 4 * _MIB
# A sample that came later than this says nothing of the time before it.
_GAP_SAMPLES = 3
_LEAST_GAP_S = 5.0


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """`folder` is where windows are kept, None if there is no disk for them."""

    config: UsageConfig
    folder: Path | None
    sample_interval_s: float
    boot_id: str = ""


async def start_usage(
    app: App, options: UsageOptions, node: Node, given_of: GivenOf, metrics: UsageMetrics
) -> Recorder:
    """Record what is used on this node from now on."""
    config = options.config
    bounds = SpoolBounds(round(config.keep_s * _NS_PER_S), config.max_mib * _MIB, _MEMORY_BYTES)
    max_gap_s = max(_GAP_SAMPLES * options.sample_interval_s, _LEAST_GAP_S)
    integrator = Integrator(round(config.window_s * 1000) * _NS_PER_MS, round(max_gap_s * _NS_PER_S))
    spools = Spools(options.folder, bounds, app.clock, options.boot_id)
    recorder = await app.enter(Recorder(integrator, spools, given_of, app.clock, metrics))
    node.on_sample(recorder.observe)
    app.add_loop(f"usage {node.state.node_name}", recorder.run)
    return recorder
