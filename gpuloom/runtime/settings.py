"""The settings that every service has."""

from dataclasses import dataclass

from gpuloom.runtime.config import setting
from gpuloom.runtime.logs import LogFormat, LogLevel
from gpuloom.runtime.parsers import choice, port, seconds, text


@dataclass(frozen=True)
class LogConfig:
    level: LogLevel = setting(
        "GPULOOM_LOG_LEVEL",
        default=LogLevel.INFO,
        parse=choice(*LogLevel),
        help=f"Least severe log record to write: {', '.join(LogLevel)}",
    )
    format: LogFormat = setting(
        "GPULOOM_LOG_FORMAT",
        default=LogFormat.AUTO,
        parse=choice(*LogFormat),
        help="Form of log records: json, console, or auto (console on a terminal, else json)",
    )


@dataclass(frozen=True)
class HttpConfig:
    """The plain HTTP endpoint for metrics and health, and how long a stop may take."""

    host: str = setting(
        "GPULOOM_HTTP_HOST",
        default="0.0.0.0",  # noqa: S104 - the kubelet and Prometheus come from outside the pod
        parse=text,
        help="Address to serve /metrics, /healthz and /readyz on",
    )
    port: int = setting(
        "GPULOOM_HTTP_PORT",
        default=8080,
        parse=port,
        help="Port of /metrics, /healthz and /readyz; 0 takes any free one",
    )
    drain_timeout_s: float = setting(
        "GPULOOM_DRAIN_TIMEOUT",
        default=8.0,
        parse=seconds,
        help="Longest wait for work in progress after a stop signal; keep it 2s below the pod's grace period",
    )
