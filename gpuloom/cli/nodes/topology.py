"""`gpuloom topology`: how the GPUs of nodes are linked, and how they are cut. Only asks and shows."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from gpuloom.cli.connection.endpoints import (
    DEFAULT_TIMEOUT_S,
    DirectoryOption,
    DiscoveryOption,
    TimeoutOption,
    find_endpoint,
    read_cluster,
)
from gpuloom.cli.nodes.topology_document import topology_document
from gpuloom.cli.nodes.topology_picture import node_picture, shape_pictures
from gpuloom.cli.output.forms import Output, OutputOption, show
from gpuloom.errors import NotFoundError
from gpuloom.model.snapshot import NodeFacts

_Node = Annotated[str, typer.Option("--node", metavar="NAME", help="Only this node, with all it has.")]


def register(app: typer.Typer) -> None:
    app.command("topology", short_help="Draw how GPUs are linked and sliced.")(topology)


def topology(
    node: _Node = "",
    discovery: DiscoveryOption = "",
    directory: DirectoryOption = Path("run"),
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Draw GPUs, NVLink, NUMA nodes and MIG slices: of one node, or of every kind of node there is.

    Exits 0, 1 if there is no such node, 3 if discovery can't be reached.
    """
    nodes = read_cluster(find_endpoint("discovery", discovery, directory, os.environ), timeout).nodes.values()
    shown = [_named(nodes, node)] if node else list(nodes)
    show(output, topology_document(shown), lambda: node_picture(shown[0]) if node else shape_pictures(shown))


def _named(nodes: Iterable[NodeFacts], name: str) -> NodeFacts:
    for facts in nodes:
        if facts.state.node_name == name:
            return facts
    raise NotFoundError(f"no GPU node {name}")
