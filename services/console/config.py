"""The console's settings."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.clients.prometheus import PrometheusConfig
from gpuloom.kube.settings import KubeConfig
from gpuloom.roster import ROSTER
from gpuloom.rpc.serving import peer_setting
from gpuloom.rpc.settings import TlsConfig
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import Address, boolean, choice, integer, port, text
from gpuloom.runtime.settings import HttpConfig, LogConfig


class Access(StrEnum):
    """TOKEN: whose token Kubernetes accepts. LOOPBACK: whoever is on this machine.

    PUBLISHED: the same, from a container whose port is published on the loopback interface of its host only.
    """

    TOKEN = "token"  # noqa: S105 - the word
    LOOPBACK = "loopback"
    PUBLISHED = "published-on-loopback"


@dataclass(frozen=True)
class ConsoleConfig:
    discovery_address: Address = peer_setting("discovery")
    extender_address: Address = peer_setting("scheduler_extender")
    cost_address: Address = peer_setting("cost_engine")
    optimizer_address: Address = peer_setting("optimizer")
    mig_address: Address = peer_setting("mig_controller")
    autoscaler_address: Address = peer_setting("autoscaler")
    controller_address: Address = peer_setting("controller")
    https_host: str = setting(
        "GPULOOM_CONSOLE_HOST",
        default="0.0.0.0",  # noqa: S104 - people come from outside the pod
        parse=text,
        help="Address to serve people on",
    )
    https_port: int = setting(
        "GPULOOM_CONSOLE_PORT",
        default=ROSTER["console"].port("https").number,
        parse=port,
        help="Port to serve people on (HTTPS)",
    )
    access: Access = setting(
        "GPULOOM_CONSOLE_ACCESS",
        default=Access.TOKEN,
        parse=choice(*Access),
        help="Who may look: token (whose token Kubernetes accepts), loopback (everybody on this machine), "
        "published-on-loopback (the same, for a container whose port is published there only)",
    )
    by_namespace: bool = setting(
        "GPULOOM_CONSOLE_NAMESPACES",
        default=False,
        parse=boolean,
        help="Show somebody only the namespaces in which Kubernetes lets them list pods",
    )
    proxy: bool = setting(
        "GPULOOM_CONSOLE_PROXY",
        default=False,
        parse=boolean,
        help="Believe the user's name in the headers of a proxy that shows the certificate of oidc_proxy",
    )
    user_header: str = setting(
        "GPULOOM_CONSOLE_USER_HEADER",
        default="X-Forwarded-User",
        parse=text,
        help="Header in which the proxy tells the user's name",
    )
    groups_header: str = setting(
        "GPULOOM_CONSOLE_GROUPS_HEADER",
        default="X-Forwarded-Groups",
        parse=text,
        help="Header in which the proxy tells the user's groups, with commas between them",
    )
    most_clients: int = setting(
        "GPULOOM_CONSOLE_MOST_CLIENTS",
        default=200,
        parse=integer(1, 10_000),
        help="Pages that may watch at the same time",
    )
    prometheus: PrometheusConfig = group(PrometheusConfig)
    tls: TlsConfig = group(TlsConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def problems(self) -> Iterable[str]:
        if self.access is Access.LOOPBACK and not _is_loopback(self.https_host):
            yield (
                f"GPULOOM_CONSOLE_ACCESS is loopback, so GPULOOM_CONSOLE_HOST must be 127.0.0.1 or ::1, "
                f"not {self.https_host}"
            )
        if self.access is not Access.TOKEN and (self.by_namespace or self.proxy):
            yield "GPULOOM_CONSOLE_NAMESPACES and GPULOOM_CONSOLE_PROXY need GPULOOM_CONSOLE_ACCESS=token"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
