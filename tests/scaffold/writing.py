"""Writes small services as CONTRIBUTING's checklist says: a contract, a folder, a row. Nothing of it is kept.

The folder is beside ours, not in it: for whoever starts with these files, `services` is in two places.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuloom.roster import ROSTER, Roster

REPOSITORY = Path(__file__).parents[2]
FIRST_PORT = 50900

PROTO = """\
syntax = "proto3";
package scaffold.v1;

service {title}Service {{
  // Says who was asked. Callers: cli.
  rpc Greet(Greet{title}Request) returns (Greet{title}Response) {{
    option idempotency_level = NO_SIDE_EFFECTS;
  }}
}}

message Greet{title}Request {{
  string name = 1;
}}

message Greet{title}Response {{
  string greeting = 1;
}}
"""

FOLDER = {
    "__init__.py": "",
    "__main__.py": """\
from gpuloom.runtime.service import run_service
from services.{name}.app import build
from services.{name}.config import Config

if __name__ == "__main__":
    run_service("{name}", Config, build)
""",
    "config.py": """\
from dataclasses import dataclass

from gpuloom.rpc.serving import ServingConfig, grpc_group
from gpuloom.runtime.config import group
from gpuloom.runtime.settings import HttpConfig, LogConfig


@dataclass(frozen=True)
class Config:
    grpc: ServingConfig = grpc_group("{name}")
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)
""",
    "app.py": """\
from gpuloom.rpc.serving import Served, rpc_environment, serve
from gpuloom.runtime.app import App
from scaffold.v1 import {name}_pb2
from scaffold.v1.{name}_pb2_grpc import add_{title}ServiceServicer_to_server
from services.{name}.config import Config
from services.{name}.server import ALLOWED_CALLERS, Server

SERVICE = {name}_pb2.DESCRIPTOR.services_by_name["{title}Service"]


async def build(app: App, config: Config) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    served = Served(Server(), add_{title}ServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    await serve(app, config.grpc, rpc, served)
""",
    "server.py": """\
from scaffold.v1 import {name}_pb2 as pb
from scaffold.v1.{name}_pb2_grpc import {title}ServiceServicer

ALLOWED_CALLERS = {{"Greet": frozenset({{"cli"}})}}


class Server({title}ServiceServicer):
    async def Greet(self, request, context):
        return pb.Greet{title}Response(greeting=f"{name} greets {{request.name}}")
""",
}

# A row in the repository's table would be read by every process; here each process reads this one.
ROWS = """\
from gpuloom.roster import Kind, Service, grpc_port

ROWS = (
{rows}
)
"""
ROW = '    Service("{name}", Kind.REPLICAS, "{name}", (grpc_port({port}, "cli"),), outside=frozenset()),'

SERVICES_PACKAGE = """\
from dataclasses import replace
from pkgutil import extend_path

from gpuloom import roster
from rows import ROWS

__path__ = extend_path(__path__, __name__)
roster.ROSTER = replace(roster.ROSTER, services=(*roster.ROSTER.services, *ROWS))
"""


def write_services(root: Path, names: Sequence[str]) -> Roster:
    """The files of these services, and our roster with their rows."""
    for name in names:
        texts = {"name": name, "title": title(name)}
        _write(root / "scaffold/v1" / f"{name}.proto", PROTO.format(**texts))
        for file, template in FOLDER.items():
            _write(root / "services" / name / file, template.format(**texts))
    _write(root / "services/__init__.py", SERVICES_PACKAGE)
    rows = "\n".join(ROW.format(name=name, port=FIRST_PORT + place) for place, name in enumerate(names))
    _write(root / "rows.py", ROWS.format(rows=rows))
    if names:
        _generate(root, [f"scaffold/v1/{name}.proto" for name in names])
    added = runpy.run_path(str(root / "rows.py"))["ROWS"]
    return replace(ROSTER, services=(*ROSTER.services, *added))


def title(name: str) -> str:
    return name.replace("_", " ").title().replace(" ", "")


def python_path(root: Path) -> str:
    return os.pathsep.join((str(root), str(REPOSITORY)))


def _generate(root: Path, protos: Sequence[str]) -> None:
    command = ["--proto_path=.", "--python_out=.", "--grpc_python_out=.", *protos]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *command], cwd=root, check=True)  # noqa: S603 - ours


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
