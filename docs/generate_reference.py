"""Write docs/reference/ from code: settings, RPCs, metrics, commands. Decides how they read."""

import ast
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc_tools
import typer
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto
from grpc_tools import protoc
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from gpuloom.cli.main import PROGRAM, build_app
from gpuloom.kube.reconciler import Reconciler
from gpuloom.roster import ROSTER
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.config import REQUIRED, Setting, settings_of
from gpuloom.runtime.heartbeat import Heartbeat

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference"
_NOTE = "<!-- Made by `make reference` from the code; change that, not this page. -->"
_KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
    "PlainCounter": "counter, without `_total`",
    "Summary": "summary",
}
_LOOP = re.compile(r'\bReconciler\(\s*"(\w+)"')
_NOTHING: Any = None
"""A loop that only tells its metrics observes nothing."""
_METRIC = re.compile(r"[a-z_:][a-z0-9_:]*", re.IGNORECASE)
_SERVICE_FIELD, _METHOD_FIELD = 6, 2
"""Numbers of fields of descriptors, by which protoc says what a comment is about."""


def pages() -> dict[str, str]:
    """Each page's text by its file name."""
    return {
        "settings.md": _page("Settings", _settings()),
        "rpcs.md": _page("RPCs", _rpcs()),
        "metrics.md": _page("Metrics", _metrics()),
        "commands.md": _page("Commands", _commands()),
    }


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", _NOTE, "", *lines]).rstrip() + "\n"


def _settings() -> Iterator[str]:
    yield "Environment variables of each service; `python -m services.<name> --help` shows the same,"
    yield "`--print-config` what an environment makes of them. **Bold** ones have to be set."
    for row in ROSTER:
        main = (ROOT / "services" / row.name / "__main__.py").read_text(encoding="utf-8")
        found = re.search(rf"from services\.{row.name}\.config import (\w+)", main)
        if found is None:
            raise SystemExit(f"services/{row.name}/__main__.py imports no configuration")
        config = getattr(importlib.import_module(f"services.{row.name}.config"), found[1])
        yield from ("", f"## {row.name}", "", "| variable | default | meaning |", "|---|---|---|")
        for setting in sorted(settings_of(config), key=lambda each: each.name):
            yield _setting_row(setting)


def _setting_row(setting: "Setting[Any]") -> str:
    required = setting.default is REQUIRED
    default = "" if required or setting.default is None else _default_text(setting.default)
    name = f"**`{setting.name}`**" if required else f"`{setting.name}`"
    return f"| {name} | {default and f'`{default}`'} | {_cell(setting.help)} |"


def _default_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset | set | tuple | list):
        return ",".join(sorted(map(str, value)) if isinstance(value, frozenset | set) else map(str, value))
    return str(value)


def _rpcs() -> Iterator[str]:
    yield "What services offer over gRPC, with mutual TLS; messages are described in `protos/gpuloom/v1`."
    yield "`stream` in front of an answer: it goes on until the caller ends it."
    for file in _descriptors():
        comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        for number, service in enumerate(file.service):
            yield from ("", f"## {service.name}", "", *_text(comments.get((_SERVICE_FIELD, number), "")))
            yield from _methods(service, number, comments)


def _methods(
    service: ServiceDescriptorProto, number: int, comments: dict[tuple[int, ...], str]
) -> Iterator[str]:
    yield from ("", "| RPC | answer | what |", "|---|---|---|")
    for place, method in enumerate(service.method):
        said = " ".join(comments.get((_SERVICE_FIELD, number, _METHOD_FIELD, place), "").split())
        answer = ("stream " if method.server_streaming else "") + method.output_type.rsplit(".", 1)[-1]
        asked = method.input_type.rsplit(".", 1)[-1]
        yield f"| `{method.name}({asked})` | `{answer}` | {_cell(said)} |"


def _descriptors() -> list[FileDescriptorProto]:
    protos = sorted((ROOT / "protos" / "gpuloom" / "v1").glob("*.proto"))
    names = [str(path.relative_to(ROOT / "protos")) for path in protos]
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        code = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'protos'}",
                f"-I{well_known}",
                f"--descriptor_set_out={out}",
                "--include_source_info",
                *names,
            ]
        )
        if code:
            raise SystemExit(f"protoc ended with {code}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _metrics() -> Iterator[str]:
    yield "What processes tell at `/metrics`, :8080. A counter is exposed with `_total` behind its name here,"
    yield "unless it ends so. GPU metrics under DCGM's names (:9400) are listed with the exporter:"
    yield "[exporter](../../services/node_agent/exporter/README.md)."
    for title, folder in (
        *((row.name, ROOT / "services" / row.name) for row in ROSTER),
        ("every service", ROOT / "gpuloom"),
    ):
        rows = sorted(
            {
                row
                for path in folder.rglob("*.py")
                if not path.name.endswith("_pb2.py")
                for row in _declared(path)
            }
        )
        rows = sorted({*rows, *_put_together(folder, "\n".join(rows))})
        if rows:
            yield from (
                "",
                f"## {title}",
                "",
                "| metric | kind | labels | meaning |",
                "|---|---|---|---|",
                *rows,
            )


def _declared(path: Path) -> Iterator[str]:
    """Metrics whose names and texts are written out where they are made."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Name)
            or node.func.id not in _KINDS
        ):
            continue
        texts = [
            part.value
            for part in node.args[:2]
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        if len(texts) == 2 and _METRIC.fullmatch(texts[0]):
            labels = ", ".join(f"`{label}`" for label in _labels(node))
            yield f"| `{texts[0]}` | {_KINDS[node.func.id]} | {labels} | {_cell(texts[1])} |"


def _put_together(folder: Path, declared: str) -> Iterator[str]:
    """Those whose names are not written out in one piece: of modules `metrics`, of loops, of processes."""
    registry = CollectorRegistry()
    for path in folder.rglob("metrics.py"):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for made in vars(module).values():
            own = isinstance(made, type) and made.__module__ == module.__name__ and "__init__" in vars(made)
            if own and list(inspect.signature(made.__init__).parameters) == ["self", "registry"]:
                made(registry)
    for path in folder.rglob("*.py"):
        for loop in _LOOP.findall(path.read_text(encoding="utf-8")):
            Reconciler(loop, _NOTHING, _NOTHING, SystemClock(), registry)
    if folder.parent.name == "services":
        Heartbeat(folder.name, SystemClock(), registry)
    # The library tells names of labels nowhere else.
    for metric in registry._collector_to_names:  # noqa: SLF001
        if isinstance(metric, MetricWrapperBase) and not _is_declared(metric._name, declared):  # noqa: SLF001
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001
            yield f"| `{metric._name}` | {metric._type} | {labels} | {_cell(metric._documentation)} |"  # noqa: SLF001


def _is_declared(name: str, rows: str) -> bool:
    return f"`{name}`" in rows or f"`{name}_total`" in rows


def _labels(call: ast.Call) -> list[str]:
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("labelnames", "labels")]
    for part in (*call.args[2:3], *named):
        if isinstance(part, ast.List | ast.Tuple):
            return [
                each.value
                for each in part.elts
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    return []


def _commands() -> Iterator[str]:
    yield f"`{PROGRAM}`, also as `gpu-autoscaler` and `kubectl gpuloom`: [how it behaves](../cli.md)."
    yield from _command(typer.main.get_command(build_app()), (PROGRAM,))


def _command(command: Any, path: Sequence[str]) -> Iterator[str]:
    context = command.make_context(path[-1], [], resilient_parsing=True)
    if len(path) > 1:
        yield from ("", f"## {' '.join(path)}", "", *_text(command.help or ""))
    options = [option for option in command.params if not getattr(option, "hidden", False)]
    rows = [_option_row(option, context) for option in options]
    if rows:
        yield from ("", "| option | meaning |", "|---|---|", *rows)
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _command(below, (*path, name))


def _option_row(option: Any, context: Any) -> str:
    record = option.get_help_record(context)
    name = record[0] if record else option.make_metavar(context)
    return f"| `{_cell(name)}` | {_cell((record or ('', option.help or ''))[1])} |"


def _text(text: str) -> Iterator[str]:
    return (line.strip() for line in text.strip().splitlines())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    for file_name, text in pages().items():
        (TARGET / file_name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")
