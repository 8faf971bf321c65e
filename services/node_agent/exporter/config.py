"""The settings of the exporter."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import choice, comma_list, existing_file, port, quoted, text

HOSTNAME_LABELS = ("Hostname", "hostname")
GPU_OPERATOR_NAMESPACE = "gpu-operator"


class ExporterMode(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"
    READ = "read"


def _hostname_label(raw: str) -> str:
    # Not `choice`, which takes any letter case: here the case is the choice.
    if raw.strip() not in HOSTNAME_LABELS:
        raise ValueError(f"must be {' or '.join(HOSTNAME_LABELS)}, not {quoted(raw)}")
    return raw.strip()


def _url(raw: str) -> str:
    url = urlsplit(raw.strip())
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"must be a URL such as http://127.0.0.1:9400/metrics, not {quoted(raw)}")
    return raw.strip()


@dataclass(frozen=True)
class ExporterConfig:
    mode: ExporterMode = setting(
        "GPULOOM_AGENT_EXPORTER",
        default=ExporterMode.AUTO,
        parse=choice(*ExporterMode),
        help="GPU metrics: on, off, read (read GPULOOM_AGENT_DCGM_URL instead of showing devices), or auto "
        "(on, but read where NVIDIA's dcgm-exporter runs; off for simulated GPUs)",
    )
    host: str = setting(
        "GPULOOM_HTTP_HOST",
        default="0.0.0.0",  # noqa: S104 - Prometheus comes from outside the pod
        parse=text,
        help="Address to serve metrics and health on",
    )
    port: int = setting(
        "GPULOOM_AGENT_EXPORTER_PORT", default=9400, parse=port, help="Port to serve GPU metrics on"
    )
    hostname_label: str = setting(
        "GPULOOM_AGENT_EXPORTER_HOSTNAME_LABEL",
        default=HOSTNAME_LABELS[0],
        parse=_hostname_label,
        help="Label with the node's name: Hostname, or hostname as newer versions of dcgm-exporter write it",
    )
    counters_file: Path | None = setting(
        "GPULOOM_AGENT_EXPORTER_COUNTERS_FILE",
        default=None,
        parse=existing_file,
        help="Which metrics to show, as a CSV file in dcgm-exporter's format; not set: its defaults, and "
        "counters of errors and throttling",
    )
    dcgm_url: str | None = setting(
        "GPULOOM_AGENT_DCGM_URL",
        default=None,
        parse=_url,
        help="Where dcgm-exporter serves the metrics of this node; for GPULOOM_AGENT_EXPORTER=read",
    )
    dcgm_namespaces: tuple[str, ...] = setting(
        "GPULOOM_AGENT_DCGM_NAMESPACES",
        default=(GPU_OPERATOR_NAMESPACE,),
        parse=comma_list(text),
        help="Namespaces in which a pod is believed to be dcgm-exporter; pods elsewhere change nothing",
    )

    def problems(self) -> Iterator[str]:
        if self.mode is ExporterMode.READ and self.dcgm_url is None:
            yield "GPULOOM_AGENT_DCGM_URL is required by GPULOOM_AGENT_EXPORTER=read"
        if self.mode is not ExporterMode.READ and self.dcgm_url is not None:
            yield "GPULOOM_AGENT_DCGM_URL needs GPULOOM_AGENT_EXPORTER=read"
