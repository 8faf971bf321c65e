"""What all servers and channels of one process share. The composition root makes one."""

import random

from prometheus_client import CollectorRegistry

from gpuloom.rpc.metrics import RpcMetrics
from gpuloom.rpc.tls import CertificateSource, TlsFiles
from gpuloom.runtime.clock import Clock


class RpcEnvironment:
    """Certificates, metrics, time and chance. Without TLS files there is no identity and no allow-list."""

    def __init__(
        self,
        tls: TlsFiles | None,
        registry: CollectorRegistry,
        clock: Clock,
        chance: random.Random | None = None,
    ) -> None:
        """Raise TlsError if the files can't be used. `chance` spreads retries."""
        self.metrics = RpcMetrics(registry)
        self.certificates = CertificateSource(tls, self.metrics.count_reload) if tls else None
        self.clock = clock
        self.chance = chance or random.Random()
