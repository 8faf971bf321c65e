"""The processes of one round: what they are called with. Nothing here starts one."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from gpuloom.cli.scheduling.scheduler_config import SchedulerConfigOptions, TlsPaths
from gpuloom.kube.objects import JsonObject
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.mesh.plan import clean_environment
from gpuloom.sim.processes.child_process import Probe, ProcessSpec
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import answers_ok
from tests.bench.variants import Variant, scheduler_config, scheduler_name
from tests.cluster.binaries import Binaries

SCHEDULER = "kube-scheduler"
EXTENDER = "extender"
CALLER = "caller"
SHORTLIST = 8
FIRST_SHORTLIST = 1
"""As the extender has them by default."""
CALL_INTERVAL_S = 0.1

_PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Grounds:
    """What is the same in all rounds. The kubeconfigs are those of the accounts that we ship."""

    directory: Path
    binaries: Binaries
    certificates: Path
    scheduler_kubeconfig: Path
    extender_kubeconfig: Path
    discovery_address: str
    clock: Clock
    shortlist: int = FIRST_SHORTLIST
    profile: bool = False


@dataclass(frozen=True)
class RoundPorts:
    scheduler: int
    extender: int
    extender_grpc: int
    extender_http: int


class RoundPlan:
    """One variant in one round, with files of its own. `called`: a second caller measures its waits."""

    def __init__(
        self, grounds: Grounds, variant: Variant, number: int, ports: RoundPorts, called: bool
    ) -> None:
        self.variant = variant
        self.number = number
        self.called = called
        self._grounds = grounds
        self._ports = ports
        self._folder = grounds.directory / f"round-{number:02}-{variant}{'-called' if called else ''}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.calls_file = self._folder / "calls.json"
        self.profile_file = self._folder / "extender.profile"
        self.waits_file = self._folder / "waits.json"

    def scheduler(self) -> ProcessSpec:
        grounds = self._grounds
        files = tls_files(grounds.certificates, "kube_scheduler")
        options = SchedulerConfigOptions(
            extender_url=f"https://{HOST}:{self._ports.extender}",
            tls=TlsPaths(str(files.cert_file), str(files.key_file), str(files.ca_file)),
            kubeconfig=str(grounds.scheduler_kubeconfig),
            scheduler_name=scheduler_name(self.variant),
        )
        config = self._folder / "kube-scheduler.yaml"
        config.write_text(scheduler_config(self.variant, options), encoding="utf-8")
        program = str(grounds.binaries.path("kube-scheduler"))
        flags = (f"--config={config}", f"--bind-address={HOST}", f"--secure-port={self._ports.scheduler}")
        return self._spec(SCHEDULER, (program, *flags), {"PATH": os.environ.get("PATH", "")})

    def extender(self) -> ProcessSpec | None:
        """None for kube-scheduler alone."""
        if self.variant is Variant.BARE:
            return None
        return self._ours() if self.variant is Variant.OURS else self._do_nothing()

    def caller(self, bodies: Sequence[JsonObject]) -> ProcessSpec:
        """A second caller of the extender; it sends these filter calls in turn."""
        path = self._folder / "filter-calls.json"
        path.write_bytes(orjson.dumps(bodies))
        arguments = (
            *("--port", str(self._ports.extender), "--certificates", str(self._grounds.certificates)),
            *("--bodies", str(path), "--waits", str(self.waits_file), "--interval", str(CALL_INTERVAL_S)),
        )
        return self._python(CALLER, "tests.bench.caller", arguments)

    def _do_nothing(self) -> ProcessSpec:
        grounds = self._grounds
        arguments: tuple[str, ...] = (
            *("--port", str(self._ports.extender), "--certificates", str(grounds.certificates)),
            *("--calls", str(self.calls_file), "--shortlist", str(grounds.shortlist)),
        )
        if self.variant is Variant.NOOP_BIND:
            arguments += ("--kubeconfig", str(grounds.extender_kubeconfig))
        ready = _listens(self._ports.extender)
        return self._python(EXTENDER, "tests.bench.do_nothing", arguments, ready=ready)

    def _ours(self) -> ProcessSpec:
        grounds, ports = self._grounds, self._ports
        files = tls_files(grounds.certificates, "scheduler_extender")
        settings = {
            "GPULOOM_KUBECONFIG": str(grounds.extender_kubeconfig),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            "GPULOOM_DISCOVERY_ADDRESS": grounds.discovery_address,
            "GPULOOM_EXTENDER_HOST": HOST,
            "GPULOOM_EXTENDER_PORT": str(ports.extender),
            "GPULOOM_EXTENDER_FIRST_SHORTLIST": str(grounds.shortlist),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_GRPC_PORT": str(ports.extender_grpc),
            "GPULOOM_HTTP_HOST": HOST,
            "GPULOOM_HTTP_PORT": str(ports.extender_http),
        }
        arguments: tuple[str, ...] = ("--calls", str(self.calls_file))
        if grounds.profile:
            arguments += ("--profile", str(self.profile_file))
        ready = answers_ok(f"http://{HOST}:{ports.extender_http}/readyz", grounds.clock)
        return self._python(EXTENDER, "tests.bench.recorded_extender", arguments, settings, ready)

    def _python(
        self,
        name: str,
        module: str,
        arguments: tuple[str, ...],
        settings: Mapping[str, str] | None = None,
        ready: Probe | None = None,
    ) -> ProcessSpec:
        environment = clean_environment(os.environ) | {"PYTHONPATH": str(_PROJECT), **(settings or {})}
        argv = (sys.executable, "-P", "-m", module, *arguments)
        return self._spec(name, argv, environment, ready)

    def _spec(
        self, name: str, argv: tuple[str, ...], environment: Mapping[str, str], ready: Probe | None = None
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=argv,
            log_path=self._folder / f"{name}.log",
            environment=environment,
            working_dir=self._folder,
            ready=ready,
        )


def _listens(port: int) -> Probe:
    async def probe() -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return False
        writer.close()
        return True

    return probe
