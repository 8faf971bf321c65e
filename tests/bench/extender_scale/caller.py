"""Plays kube-scheduler: has pod after pod filtered, prioritized and bound, and keeps how long it waited.

One call at a time, on connections that stay open, in turns: some pods with the one extender, then as many of
the same kind with the other, so that whatever else the machine does meets both. What it does itself between
two calls is not measured.
"""

import argparse
import gc
import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.scheduler.extender import client_tls
from gpuloom.sim.scheduler.wire import ExtenderError, bind_answer, filter_answer, prioritize_answer

TIMEOUT_S = 30.0
TURN = 50
MOST_PROBLEMS = 20

_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Address:
    """Ports on loopback: of an extender, and of the Kubernetes API in which it binds."""

    extender: int
    api: int


@dataclass(frozen=True, slots=True)
class Script:
    """What to call, with what. Every extender gets every pod."""

    certificates: str
    addresses: Mapping[str, Address]
    node_names: Sequence[str]
    pods: Sequence[JsonObject]


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds of every call, in the order of the pods; `problems` are calls that went wrong."""

    filter_s: list[float] = field(default_factory=list)
    prioritize_s: list[float] = field(default_factory=list)
    bind_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def decision_s(self) -> list[float]:
        """Filter and prioritize of a pod together."""
        return [sum(pair) for pair in zip(self.filter_s, self.prioritize_s, strict=True)]


class Scheduler:
    """One extender, and the pods that come to it."""

    def __init__(self, script: Script, name: str) -> None:
        address = script.addresses[name]
        files = tls_files(Path(script.certificates), "kube_scheduler")
        tls = client_tls(files.ca_file, files.cert_file, files.key_file)
        self.waits = Waits()
        self._names = script.node_names
        self._extender = http.client.HTTPSConnection(HOST, address.extender, context=tls, timeout=TIMEOUT_S)
        self._api = http.client.HTTPConnection(HOST, address.api, timeout=TIMEOUT_S)

    def take(self, pods: Sequence[JsonObject]) -> None:
        """They come all at once and are placed one by one."""
        for pod in [self._create(pod) for pod in pods]:
            try:
                self._place(pod)
            except ExtenderError as error:
                if len(self.waits.problems) < MOST_PROBLEMS:
                    self.waits.problems.append(f"{key_of(pod)[1]}: {error}")

    def close(self) -> None:
        self._extender.close()
        self._api.close()

    def _place(self, pod: JsonObject) -> None:
        asked = {"Pod": pod, "Nodes": None, "NodeNames": self._names}
        answer, filter_s = self._ask("filter", asked)
        kept = filter_answer(answer, self._names).nodes
        if not kept:
            raise ExtenderError("no node was kept")
        answer, prioritize_s = self._ask("prioritize", asked | {"NodeNames": kept})
        scores = prioritize_answer(answer)
        self.waits.filter_s.append(filter_s)
        self.waits.prioritize_s.append(prioritize_s)
        (namespace, name), uid = key_of(pod), uid_of(pod)
        winner = max(scores, key=lambda host: scores[host])
        call = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": winner}
        answer, bind_s = self._ask("bind", call)
        bind_answer(answer)
        self.waits.bind_s.append(bind_s)

    def _ask(self, verb: str, call: Mapping[str, Any]) -> tuple[bytes, float]:
        body = orjson.dumps(call)
        began_s = time.monotonic()
        self._extender.request("POST", f"/{verb}", body, _JSON)
        response = self._extender.getresponse()
        answer = response.read()
        took_s = time.monotonic() - began_s
        if response.status != http.HTTPStatus.OK:
            raise ExtenderError(f"{verb} was answered with {response.status}: {answer[:200]!r}")
        return answer, took_s

    def _create(self, pod: JsonObject) -> JsonObject:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        self._api.request("POST", path, orjson.dumps(pod), _JSON)
        response = self._api.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.CREATED:
            raise ConnectionError(f"a pod could not be created: {answer[:200]!r}")
        created: JsonObject = orjson.loads(answer)
        return created


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.extender_scale.caller", description=__doc__)
    parser.add_argument("--script", type=Path, required=True, help="what to call, with what")
    parser.add_argument("--waits", type=Path, required=True, help="file for the outcome")
    options = parser.parse_args()
    script = read_script(options.script)
    # This process is nothing but a measurement: its own pauses must not look like somebody else's.
    gc.disable()
    schedulers = {name: Scheduler(script, name) for name in script.addresses}
    for pods in turns(script.pods):
        for scheduler in schedulers.values():
            scheduler.take(pods)
    for scheduler in schedulers.values():
        scheduler.close()
    waits = {name: asdict(scheduler.waits) for name, scheduler in schedulers.items()}
    options.waits.write_bytes(orjson.dumps(waits))


def turns(pods: Sequence[JsonObject]) -> Iterator[Sequence[JsonObject]]:
    for start in range(0, len(pods), TURN):
        yield pods[start : start + TURN]


def write_script(path: Path, script: Script) -> None:
    path.write_bytes(orjson.dumps(asdict(script)))


def read_script(path: Path) -> Script:
    fields = orjson.loads(path.read_bytes())
    addresses = {name: Address(**ports) for name, ports in fields.pop("addresses").items()}
    return Script(addresses=addresses, **fields)


def read_waits(path: Path) -> dict[str, Waits]:
    return {name: Waits(**fields) for name, fields in orjson.loads(path.read_bytes()).items()}


if __name__ == "__main__":
    main()
