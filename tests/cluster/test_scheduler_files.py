"""The files of deploy/scheduler, as a real kube-scheduler takes them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpuloom.cli.scheduling.scheduler_config import (
    REPLACE_DEFAULT,
    SchedulerConfigOptions,
    TlsPaths,
    render_scheduler_config,
)
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.runtime.clock import SystemClock
from tests.cluster.binaries import Binaries

pytestmark = pytest.mark.real

PATIENCE_S = 120.0
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": "none"}}],
    "current-context": "c",
}


def checked(binaries: Binaries, folder: Path, configuration: str) -> tuple[bool, str]:
    """Whether kube-scheduler takes it, and what it says. It only reads and writes it out again."""
    (folder / "config.yaml").write_text(configuration, encoding="utf-8")
    written = folder / "written.yaml"
    command = (
        str(binaries.path("kube-scheduler")),
        f"--config={folder / 'config.yaml'}",
        f"--write-config-to={written}",
        "--secure-port=0",
    )
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603
    return written.exists(), result.stderr


def with_files(options: SchedulerConfigOptions, folder: Path) -> SchedulerConfigOptions:
    """With a kubeconfig and certificates that are there: kube-scheduler opens them."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG), encoding="utf-8")
    made = issue_development_certificates(folder, CertificateOrder(("kube_scheduler",)), SystemClock())
    files = made["kube_scheduler"]
    tls = TlsPaths(str(files.cert_file), str(files.key_file), str(files.ca_file))
    return replace(options, kubeconfig=str(kubeconfig), tls=tls)


@pytest.mark.parametrize("options", [SchedulerConfigOptions(), REPLACE_DEFAULT])
def test_kube_scheduler_takes_both_variants(
    binaries: Binaries, tmp_path: Path, options: SchedulerConfigOptions
) -> None:
    text = render_scheduler_config(with_files(options, tmp_path))

    taken, said = checked(binaries, tmp_path, text)

    assert taken, said


def test_kube_scheduler_refuses_a_second_entry_for_the_same_resources(
    binaries: Binaries, tmp_path: Path
) -> None:
    document = yaml.safe_load(render_scheduler_config(with_files(SchedulerConfigOptions(), tmp_path)))
    (entry,) = document["extenders"]
    asking = {key: value for key, value in entry.items() if key != "bindVerb"}
    binding = {key: value for key, value in entry.items() if not key.endswith("Verb")}
    document["extenders"] = [asking, {**binding, "bindVerb": "bind"}]

    taken, said = checked(binaries, tmp_path, yaml.safe_dump(document))

    assert not taken
    assert "duplicate extender managed resource name" in said
