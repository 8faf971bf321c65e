"""The webhook's settings."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.kube.settings import KubeConfig
from gpuloom.placement.strategies import WITHOUT_DEVICES
from gpuloom.roster import ROSTER
from gpuloom.rpc.serving import peer_setting
from gpuloom.rpc.settings import TlsConfig
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import Address, boolean, comma_list, integer, port, seconds, text
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.webhook.core.pods import SYSTEM_NAMESPACES, PodPolicy

API_SERVER_TIMEOUT_S = 2.0
"""timeoutSeconds of the shipped webhook configurations, for pods."""


@dataclass(frozen=True)
class WebhookConfig:
    discovery_address: Address = peer_setting("discovery")
    optimizer_address: Address = peer_setting("optimizer")
    https_host: str = setting(
        "GPULOOM_WEBHOOK_HOST",
        default="0.0.0.0",  # noqa: S104 - the API server comes from outside the pod
        parse=text,
        help="Address to serve the API server on",
    )
    https_port: int = setting(
        "GPULOOM_WEBHOOK_PORT",
        default=ROSTER["webhook"].port("https").number,
        parse=port,
        help="Port to serve the API server on (HTTPS)",
    )
    client_certificate: bool = setting(
        "GPULOOM_WEBHOOK_CLIENT_CERTIFICATE",
        default=False,
        parse=boolean,
        help="Serve only callers that show a certificate of the same authority; the API server needs a "
        "kubeconfig for webhooks then",
    )
    configuration: str | None = setting(
        "GPULOOM_WEBHOOK_CONFIGURATION",
        default=None,
        parse=text,
        help="Name of the webhook configurations whose CA bundle is kept true to GPULOOM_TLS_CA_FILE; not "
        "set where cert-manager does that",
    )
    deadline_s: float = setting(
        "GPULOOM_WEBHOOK_DEADLINE",
        default=0.03,
        parse=seconds,
        help="How long after it began to come a review may wait for advice on its pod; without it the pod is "
        "admitted as it is",
    )
    share_by_default: bool = setting(
        "GPULOOM_WEBHOOK_SHARE_BY_DEFAULT",
        default=False,
        parse=boolean,
        help="Rewrite GPU pods also where neither they nor their namespace ask for it",
    )
    exempt_namespaces: tuple[str, ...] = setting(
        "GPULOOM_WEBHOOK_EXEMPT_NAMESPACES",
        default=(),
        parse=comma_list(text),
        help="Namespaces whose pods are never changed, beside those of Kubernetes itself",
    )
    scheduler_name: str | None = setting(
        "GPULOOM_WEBHOOK_SCHEDULER_NAME",
        default=None,
        parse=text,
        help="schedulerName of GPU pods that name none, where ours is a second scheduler",
    )
    gang_timeout_s: int | None = setting(
        "GPULOOM_WEBHOOK_GANG_TIMEOUT",
        default=None,
        parse=integer(1, 86_400),
        help="Seconds that members of a gang get as gpuloom.dev/gang-timeout-seconds, where they name none",
    )
    rejects: bool = setting(
        "GPULOOM_WEBHOOK_REJECT",
        default=False,
        parse=boolean,
        help="Refuse pods whose GPU request has no clear meaning, with the right form; else they are warned",
    )
    writers: tuple[str, ...] = setting(
        "GPULOOM_WEBHOOK_ALLOCATION_WRITERS",
        default=("system:serviceaccount:gpuloom-system:gpuloom-scheduler-extender",),
        parse=comma_list(text),
        help="Users that may write allocations, where the API server has no ValidatingAdmissionPolicy",
    )
    strategies: tuple[str, ...] = setting(
        "GPULOOM_WEBHOOK_STRATEGIES",
        default=tuple(WITHOUT_DEVICES),
        parse=comma_list(text),
        help="Strategies that a GPUWorkload may name: the controller's own and its plug-ins",
    )
    tls: TlsConfig = group(TlsConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def problems(self) -> Iterable[str]:
        if self.deadline_s >= API_SERVER_TIMEOUT_S:
            yield (
                f"GPULOOM_WEBHOOK_DEADLINE must be below the {API_SERVER_TIMEOUT_S:g}s after which the API "
                f"server gives up, not {self.deadline_s:g}s"
            )

    def pod_policy(self) -> PodPolicy:
        exempt = SYSTEM_NAMESPACES | set(self.exempt_namespaces)
        return PodPolicy(
            self.share_by_default, exempt, self.scheduler_name, gang_timeout_s=self.gang_timeout_s
        )
