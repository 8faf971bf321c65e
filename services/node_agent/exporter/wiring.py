"""Puts the exporter together for the agents of one process."""

import logging
from dataclasses import dataclass

import aiohttp

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.informer import Informer
from gpuloom.runtime.app import App
from services.node_agent.exporter.config import ExporterConfig, ExporterMode
from services.node_agent.exporter.core.counters_file import read_choice
from services.node_agent.exporter.core.detection import DcgmPods
from services.node_agent.exporter.core.exposition import PageFormat
from services.node_agent.exporter.dcgm_reader import DcgmReader, FilledDriver, ReaderParts
from services.node_agent.exporter.exporter import Exporter, Note, Shown
from services.node_agent.exporter.metrics import ExporterMetrics
from services.node_agent.exporter.server import ExporterServer
from services.node_agent.ports import GpuDriver

_log = logging.getLogger(__name__)

_ELSEWHERE = "NVIDIA's dcgm-exporter shows this node's devices, so they are not shown here"
_NOT_LISTED = "pods are not listed yet, so dcgm-exporter may be showing this node's devices"
# A node whose Kubernetes API is away for longer shows its devices rather than nothing.
_LISTING_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class ExporterParts:
    """`reader` is None where dcgm-exporter is never read."""

    exporter: Exporter
    server: ExporterServer
    reader: ReaderParts | None


class NodeExport:
    """How nodes are shown to Prometheus, as configured."""

    def __init__(self, app: App, config: ExporterConfig, pods: Informer, parts: ExporterParts | None) -> None:
        self._app = app
        self._config = config
        self._pods = pods
        self._parts = parts

    @property
    def port(self) -> int:
        """Where it listens; 0 if it does not."""
        return 0 if self._parts is None else self._parts.server.port

    def show(self, node: Shown, driver: GpuDriver) -> GpuDriver:
        """Show this node from now on. The answer is its driver, with dcgm-exporter's values in its gaps."""
        if self._parts is None:
            return driver
        name = node.state.node_name
        if self._parts.reader is None:
            self._parts.exporter.add(node)
            return driver
        if self._config.dcgm_url is not None:
            url = self._config.dcgm_url
            self._parts.exporter.add(node, lambda: _ELSEWHERE)
            reader = DcgmReader(name, lambda: url, self._parts.reader)
        else:
            found = DcgmPods(name, self._config.dcgm_namespaces)
            self._pods.on_change(found.hear)
            self._parts.exporter.add(node, self._note(found))
            reader = DcgmReader(name, found.url, self._parts.reader)
        self._app.add_loop(f"dcgm-exporter {name}", reader.run)
        return FilledDriver(driver, reader)

    def _note(self, found: DcgmPods) -> Note:
        patient_until_s = self._app.clock.monotonic() + _LISTING_PATIENCE_S

        def note() -> str:
            if found.url():
                return _ELSEWHERE
            waiting = not self._pods.synced and self._app.clock.monotonic() < patient_until_s
            return _NOT_LISTED if waiting else ""

        return note


async def start_exporter(
    app: App, config: ExporterConfig, pods: Informer, *, simulated: bool = False
) -> NodeExport:
    """Serve GPU metrics from the end of build on; which nodes, the answer is told.

    Agents of simulated GPUs serve none unless they are told to: many of them run on one machine. Raise
    InvalidRequestError if the file of counters can't be understood.
    """
    if config.mode is ExporterMode.OFF or (config.mode is ExporterMode.AUTO and simulated):
        return NodeExport(app, config, pods, None)
    metrics = ExporterMetrics(app.registry)
    exporter = Exporter(_page_format(config), app.clock, metrics)
    server = ExporterServer(exporter, config.host, config.port, metrics)
    reader = None
    if config.mode in (ExporterMode.AUTO, ExporterMode.READ):
        session = await app.enter(aiohttp.ClientSession())
        reader = ReaderParts(session, app.clock, metrics)
    app.add_loop("GPU metrics", lambda: server.serve(app.clock))
    return NodeExport(app, config, pods, ExporterParts(exporter, server, reader))


def _page_format(config: ExporterConfig) -> PageFormat:
    path = config.counters_file
    if path is None:
        return PageFormat(config.hostname_label)
    try:
        choice = read_choice(path.read_text("utf-8"))
    except (UnicodeDecodeError, InvalidRequestError) as error:
        raise InvalidRequestError(
            f"{path} is no file of counters as dcgm-exporter has it: {error}"
        ) from error
    if choice.unknown:
        fields = {"file": str(path), "fields": ", ".join(choice.unknown)}
        _log.warning("fields of the counters file can't be given, so they are not shown", extra=fields)
    return PageFormat(config.hostname_label, choice.families, choice.labels)
