"""The processes: Kubernetes APIs, the extender, one that does nothing, their caller.

Nothing here starts one.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.clock import Clock
from gpuloom.sim.mesh.plan import clean_environment
from gpuloom.sim.processes.child_process import Probe, ProcessSpec
from gpuloom.sim.processes.ports import HOST
from gpuloom.sim.processes.probes import answers_ok
from tests.bench.extender_scale.ground import Ground
from tests.bench.launch import SHORTLIST

EXTENDER = "extender"
DO_NOTHING = "do-nothing"
STARTED_S = 300.0

_PROJECT = Path(__file__).parents[3]


class Stage:
    def __init__(self, ground: Ground, discovery_address: str, clock: Clock) -> None:
        self._ground = ground
        self._discovery_address = discovery_address
        self._clock = clock
        self.script_file = ground.folder / "script.json"
        self.waits_file = ground.folder / "waits.json"

    def apis(self) -> list[ProcessSpec]:
        return [self._api(self._ground.ports.api), self._api(self._ground.ports.aside_api)]

    def extender(self) -> ProcessSpec:
        ground, ports = self._ground, self._ground.ports
        files = tls_files(ground.certificates, "scheduler_extender")
        settings = {
            "GPULOOM_KUBECONFIG": str(ground.kubeconfig(ports.api)),
            "GPULOOM_TLS_CERT_FILE": str(files.cert_file),
            "GPULOOM_TLS_KEY_FILE": str(files.key_file),
            "GPULOOM_TLS_CA_FILE": str(files.ca_file),
            "GPULOOM_DISCOVERY_ADDRESS": self._discovery_address,
            "GPULOOM_EXTENDER_HOST": HOST,
            "GPULOOM_EXTENDER_PORT": str(ports.extender),
            # More than by default, so that there is something to prioritize.
            "GPULOOM_EXTENDER_FIRST_SHORTLIST": str(SHORTLIST),
            "GPULOOM_GRPC_HOST": HOST,
            "GPULOOM_GRPC_PORT": str(ports.extender_grpc),
            "GPULOOM_HTTP_HOST": HOST,
            "GPULOOM_HTTP_PORT": str(ports.extender_http),
        }
        ready = answers_ok(f"http://{HOST}:{ports.extender_http}/readyz", self._clock)
        return self._python(EXTENDER, ("services.scheduler_extender",), settings, ready)

    def do_nothing(self) -> ProcessSpec:
        """It listens long before the other one has listed everything."""
        ground, port = self._ground, self._ground.ports.do_nothing
        arguments = (
            *("--port", str(port), "--certificates", str(ground.certificates)),
            *("--calls", str(ground.folder / "do-nothing.json"), "--shortlist", str(SHORTLIST)),
            *("--kubeconfig", str(ground.kubeconfig(ground.ports.aside_api))),
        )
        return self._python(DO_NOTHING, ("tests.bench.do_nothing", *arguments), {}, None)

    def caller(self) -> ProcessSpec:
        """It ends by itself; what it measured is in `waits_file` then."""
        arguments = ("--script", str(self.script_file), "--waits", str(self.waits_file))
        return self._python("caller", ("tests.bench.extender_scale.caller", *arguments), {}, None)

    def _api(self, port: int) -> ProcessSpec:
        arguments = ("--port", str(port), "--state", str(self._ground.api_state(port)))
        ready = answers_ok(f"http://{HOST}:{port}/readyz", self._clock)
        return self._python(f"kubernetes-api-{port}", ("gpuloom.sim.kubeapi", *arguments), {}, ready)

    def _python(
        self, name: str, command: tuple[str, ...], settings: Mapping[str, str], ready: Probe | None
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-P", "-m", *command),
            log_path=self._ground.folder / f"{name}.log",
            environment=clean_environment(os.environ) | {"PYTHONPATH": str(_PROJECT), **settings},
            working_dir=self._ground.folder,
            ready=ready,
            start_timeout_s=STARTED_S,
        )
